"""Registers full blocks of running requests in the prefix cache: not when they fill, but before a request looks for them."""

from sim.engine.batch import Batch, Chunk
from sim.engine.progress import num_hashed_tokens, num_scheduled_to
from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler_state import SchedulerState


class BlockHashing:
    """Registers the blocks of `state.unhashed` in the order in which vLLM does, which decides whose copy is the oldest."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._kv = state.kv

    def catch_up(self, step: int, before: int | None = None, num_begun: int = 0) -> None:
        """Register all blocks that running requests have filled by pass `step`.

        Requests whose `serial` is below `before` have been scheduled in that pass already; if it is None, all have. Of the passes
        before it `num_begun` are yet to be done.
        """
        unhashed = self._state.unhashed
        for request in list(unhashed):
            if request.status is RequestStatus.PREFILLING:
                self._kv.keep_shared_blocks(request, request.num_computed_tokens)
            else:
                is_scheduled = before is None or request.serial < before
                self.keep_decoded_blocks(request, step, is_scheduled=is_scheduled, num_begun=num_begun)
            if self._kv.num_registered_blocks(request) >= request.num_shared_blocks:
                del unhashed[request]

    def add_chunk(self, batch: Batch, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        """Schedule prompt tokens whose blocks were taken; full blocks can be found by the rest of the pass."""
        before = request.num_computed_tokens
        self._state.compute(request, num_tokens, 1, batch.step)
        after = request.num_computed_tokens
        self.keep_chunk(request, batch.step, after)
        batch.chunks.append(Chunk(request, num_tokens, before, num_new_blocks, after == request.num_tokens))

    def keep_chunk(self, request: Request, step: int, num_tokens: int) -> None:
        """Register the full blocks among a prompt's first `num_tokens`, if another running request may fill equal ones."""
        unhashed = self._state.unhashed
        if request in unhashed and len(unhashed) > 1:
            self.catch_up(step, request.serial)
            self._kv.keep_shared_blocks(request, num_tokens)

    def keep_decoded_blocks(self, request: Request, step: int, *, is_scheduled: bool, num_begun: int = 0) -> None:
        """Register the blocks that a decode has filled up to pass `step`, which has scheduled it or not yet."""
        if request.num_shared_blocks and request.status is not RequestStatus.PREFILLING:
            scheduled_to = num_scheduled_to(request, step) if is_scheduled else 0
            hashed = num_hashed_tokens(request, step, self._state.num_collected + num_begun, scheduled_to)
            self._kv.keep_shared_blocks(request, hashed)
