"""When the blocks that running requests fill become findable: not as they fill, but before anyone looks for them."""

from sim.engine.batch import Batch, Chunk
from sim.engine.progress import num_hashed_tokens, num_scheduled_to
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler_state import SchedulerState


class BlockHashing:
    """Gives the blocks of `state.unhashed` their hashes, in the order in which vLLM would."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kv = state.kv

    def catch_up(self, step: int, before: int | None = None) -> None:
        """Register what running requests have filled.

        Those admitted before number `before` have been scheduled in pass `step` already; all where it is None.
        """
        unhashed = self._state.unhashed
        for request in list(unhashed):
            if request.status is RequestStatus.PREFILLING:
                self._kv.keep_shared_blocks(request, request.num_computed_tokens)
            else:
                self.keep_decoded_blocks(request, step, is_scheduled=before is None or request.serial < before)
            if self._kv.num_registered_blocks(request) >= request.num_shared_blocks:
                del unhashed[request]

    def add_chunk(self, batch: Batch, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        """Schedule prompt tokens that have their blocks; full blocks can be found from now on."""
        before = request.num_computed_tokens
        self._state.compute(request, num_tokens, 1, batch.step)
        after = request.num_computed_tokens
        self.keep_chunk(request, batch.step, after)
        batch.chunks.append(Chunk(request, num_tokens, before, num_new_blocks, after == request.num_tokens))

    def keep_chunk(self, request: Request, step: int, num_tokens: int) -> None:
        """Register what a prompt has filled once pass `step` has computed so many tokens, if others may fill the same."""
        unhashed = self._state.unhashed
        if request in unhashed and len(unhashed) > 1:
            self.catch_up(step, request.serial)
            self._kv.keep_shared_blocks(request, num_tokens)

    def keep_decoded_blocks(self, request: Request, step: int, *, is_scheduled: bool) -> None:
        """Register what a request has decoded up to pass `step`, which has scheduled it or not yet."""
        if request.num_shared_blocks and request.status is not RequestStatus.PREFILLING:
            scheduled_to = num_scheduled_to(request, step) if is_scheduled else 0
            hashed = num_hashed_tokens(request, step, self._state.num_collected, scheduled_to)
            self._kv.keep_shared_blocks(request, hashed)
