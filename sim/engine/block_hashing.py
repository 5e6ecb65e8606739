"""When the blocks that running requests fill become findable: not as they fill, but before anyone looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.engine.progress import num_hashed_tokens
from sim.engine.request import Request, RequestStatus

if TYPE_CHECKING:
    from sim.engine.scheduler import Scheduler


class BlockHashing:
    """`pending` are the running requests that have or will have blocks which others may ask for, not yet registered."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self.pending: dict[Request, None] = {}

    def catch_up(self, step: int, before: int | None = None) -> None:
        """Register what running requests have filled.

        Those admitted before number `before` have been scheduled in pass `step` already; all where it is None.
        """
        for request in list(self.pending):
            if request.status is RequestStatus.PREFILLING:
                self._kv.keep_full_blocks(request, request.num_computed_tokens)
            else:
                self.keep_decoded_blocks(request, step, is_scheduled=before is None or request.serial < before)
            if self._kv.num_registered_blocks(request) >= request.num_shared_blocks:
                del self.pending[request]

    def keep_chunk(self, request: Request, step: int, num_tokens: int) -> None:
        """Register what a prompt has filled once pass `step` has computed so many tokens, if others may fill the same."""
        if self._scheduler.walks_windows or (request in self.pending and len(self.pending) > 1):
            self.catch_up(step, request.serial)
            self._kv.keep_full_blocks(request, num_tokens)

    def keep_decoded_blocks(self, request: Request, step: int, *, is_scheduled: bool) -> None:
        """Register what a request has decoded up to pass `step`, which has scheduled it or not yet."""
        if request.keyed is not None and request.status is not RequestStatus.PREFILLING:
            ends = max(request.last_pass, request.wasted_pass)
            runs = is_scheduled and step <= ends and step not in (request.starved_pass, request.passed_over_pass)
            scheduled_to = step - request.epoch if runs else 0
            hashed = num_hashed_tokens(request, step, self._scheduler.num_collected, scheduled_to)
            self._kv.keep_full_blocks(request, hashed)
