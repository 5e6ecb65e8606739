"""Passes that are certain to run the present decodes and admit no request, so that many can be done at once.

There are two kinds of such *steady* passes. In the first, no prompt is computed and no request can be admitted. In the
second, the only prefill, which does not finish in them, takes all tokens that the decodes leave of the budget: no tokens
are left for another request. These are done one by one, and so are those of the first kind in which windows have to be
looked at of some requests.
"""

from sim.engine.block_hashing import BlockHashing
from sim.engine.request import Request
from sim.engine.scheduler_state import SchedulerState
from sim.engine.unlimited import UNLIMITED
from sim.engine.windows import Windows
from sim.steptime.protocol import StepShape, shape_of


class LeapPlanner:
    """Says how many steady passes are ahead and what they compute, and does them."""

    def __init__(self, state: SchedulerState, block_hashing: BlockHashing) -> None:
        self._state = state
        self._block_hashing = block_hashing
        self._decodes = state.decodes
        self._kv = state.kv
        self._token_budget = state.config.token_budget
        self._num_in_flight = state.config.num_batches_in_flight
        self._threshold_varies = state.config.engine.long_prefill_token_threshold_adaptive

    def num_passes(self, step: int, *, foreseen: bool) -> int:
        """How many passes from `step` on are steady for certain; 0 if none is.

        `foreseen` leaves out those of which only doing them tells how many blocks they give back: windows that are looked at.
        """
        state, decodes, windows = self._state, self._decodes, self._state.windows
        if state.wastes_a_decode and state.ended:
            return 0
        if foreseen and windows and self.go_one_by_one(step):
            return 0
        if state.prefills:
            return self._num_filling(step)
        if not (state.admits_nobody and decodes.count) or decodes.count > self._token_budget:
            return 0
        limit = decodes.ends.next_pass - step + 1
        if state.waiting:
            limit = self.num_to_release(step, limit)
        if windows:
            return self._num_with_windows(step, limit, windows)
        return decodes.passes_within(step, limit, self._kv.pool.num_free // self._kv.num_groups)

    def go_one_by_one(self, step: int) -> bool:
        """Whether the next passes, if they are steady, have to be done one by one."""
        windows = self._state.windows
        return bool(self._state.prefills) or (windows is not None and windows.num_counted_passes(step) == 0)

    def _is_steady(self, step: int) -> bool:
        """Whether the next pass, in which windows are looked at, has enough blocks, and nobody waits for those that they give back."""
        waits_for_blocks = self._state.waiting and self._state.num_blocks_to_admit < UNLIMITED
        return not waits_for_blocks and self.num_blocks(step, 1, 0) <= self._kv.pool.num_free

    def _num_with_windows(self, step: int, limit: int, windows: Windows) -> int:
        """How many passes, at most `limit`, have enough blocks and leave too few free ones to admit the head of the queue."""
        if self.go_one_by_one(step):
            return int(limit > 0 and self._is_steady(step))
        limit = min(limit, windows.num_counted_passes(step))
        free = self._kv.pool.num_free
        enough = self._state.num_blocks_to_admit if self._state.waiting else UNLIMITED
        boundaries, passed = self._decodes.block_boundaries, windows.due
        num_groups, block_size = self._kv.num_groups, len(boundaries)
        most_rounds = limit // block_size + 1
        if self._decodes.count * num_groups * most_rounds <= free and free + sum(passed) * most_rounds < enough:
            return limit  # the usual case
        for number in range(limit):
            taken = boundaries[(step + number) % block_size] * num_groups
            if taken > free:
                return number
            free += passed[(step + number) % block_size] - taken
            if free >= enough:
                return number
        return limit

    def _num_filling(self, step: int) -> int:
        """How many passes the only prefill will fill without finishing; 0 if other requests may get tokens."""
        state, num_tokens = self._state, self.num_chunk_tokens
        request = self._prompt
        left = request.num_tokens - request.num_computed_tokens
        if left <= num_tokens or num_tokens < 2 or num_tokens > state.longest_chunk:
            return 0
        if self._threshold_varies:
            return 0
        is_alone = next(reversed(state.running)) is request
        unhashed = state.unhashed
        if not is_alone or (request in unhashed and len(unhashed) > 1):
            return 0
        count = min((left - 1) // num_tokens, self._decodes.ends.next_pass - step + 1)
        while count > 0 and self.num_blocks(step, count, num_tokens) > self._kv.pool.num_free:
            count -= 1
        return count

    def num_to_release(self, step: int, limit: int) -> int:
        """How many passes from `step` on are launched before a request finishes and releases its blocks, at most `limit`."""
        ended = self._state.ended
        return min(limit, next(iter(ended)) + self._num_in_flight - step) if ended else limit

    @property
    def num_chunk_tokens(self) -> int:
        """Prompt tokens in each steady pass; 0 if no prompt is computed."""
        return self._token_budget - self._decodes.count if self._state.prefills else 0

    def filling_chunk(self, num_chunk_tokens: int) -> tuple[int, int]:
        """(tokens of the prompt in the next steady pass, tokens of it computed before); (0, 0) if no prompt is computed."""
        return (num_chunk_tokens, self._prompt.num_computed_tokens) if num_chunk_tokens else (0, 0)

    def shape(self, step: int, num_chunk_tokens: int) -> StepShape:
        """The work of a steady pass, for the step-time model."""
        num_decodes, context_tokens = self._decodes.count, self._decodes.context_sum(step)
        chunks = (self.filling_chunk(num_chunk_tokens),) if num_chunk_tokens else ()
        return shape_of(num_decodes, context_tokens, chunks, num_decodes)

    def num_blocks(self, step: int, num_passes: int, num_chunk_tokens: int) -> int:
        """Blocks that `num_passes` steady passes from `step` on take."""
        blocks = self._decodes.blocks_begun(step, num_passes) * self._kv.num_groups
        if num_chunk_tokens:
            blocks += self._kv.new_blocks(self._prompt.num_computed_tokens, num_passes * num_chunk_tokens)
        return blocks

    def num_more_blocks(self, step: int, num_passes: int, num_chunk_tokens: int) -> int:
        """The same less those that attention windows give back in these passes."""
        return self.num_blocks(step, num_passes, num_chunk_tokens) - self.num_passed_blocks(step, num_passes)

    def num_passed_blocks(self, step: int, num_passes: int) -> int:
        """Blocks that attention windows give back in `num_passes` steady passes from `step` on."""
        windows = self._state.windows
        return windows.num_blocks(step, num_passes) if windows else 0

    def num_cached_after(self, step: int, num_passes: int, num_chunk_tokens: int, request: Request) -> int:
        """Leading blocks that a request could use after `num_passes` steady passes from `step` on, which have begun.

        What windows give back in these passes counts, even where so few blocks are free that they take it again.
        """
        self._block_hashing.catch_up(step + num_passes, before=0, num_begun=num_passes)
        if num_chunk_tokens:
            prompt = self._prompt
            self._kv.keep_shared_blocks(prompt, prompt.num_computed_tokens + num_passes * num_chunk_tokens)
        return self._kv.num_found_after(request, self.num_blocks(step, num_passes, num_chunk_tokens))

    @property
    def _prompt(self) -> Request:
        return next(iter(self._state.prefills))

    def commit(self, step: int, num_passes: int, num_chunk_tokens: int) -> None:
        """Do `num_passes` steady passes, the first of which is `step`."""
        state = self._state
        blocks = self.num_blocks(step, num_passes, num_chunk_tokens)
        looking = state.windows if self.go_one_by_one(step) else None
        if looking:
            self._block_hashing.catch_up(step, before=0)
        elif state.windows:
            state.windows.pass_steadily(step, num_passes)  # first, as later passes may take what earlier ones give back
        if blocks:
            self._kv.pool.take(blocks)
        if looking:
            looking.free_passed(step, state.num_collected, state.prefills)
        if num_chunk_tokens:
            state.compute(self._prompt, num_chunk_tokens, num_passes, step + num_passes - 1)
        if step + num_passes > self._decodes.ends.next_pass:
            state.end_decodes()
        if looking:
            looking.advance(step)
