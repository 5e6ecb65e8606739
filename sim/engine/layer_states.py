"""Layers that keep a state instead of tokens: which blocks it takes, how long they are held, and where chunks end for its sake.

Mirrors MambaManager in its mode "align" (vLLM 0.28 to 0.33, v1/core/single_type_kv_cache_manager.py) and `_mamba_block_aligned_split` of v1/core/sched/scheduler.py.
A state is written as a chunk ends, into the block of the chunk's last token, and can be found if a block ends there; where a pass
can write a second one, that is in the block before.
"""

from sim.engine.config import SchedulerConfig
from sim.engine.request import HeldStates, Request


class LayerStates:
    """The rules for all KV groups of such layers, whose blocks are those of the same numbers.

    Drafts have `num_drafts` blocks behind the state's own; where a drafter `drops` the last block of a hit, that is computed again; keys of blocks cover `hash_lookahead` tokens behind
    them too.
    """

    def __init__(self, config: SchedulerConfig, hash_lookahead: int, num_drafts: int, *, drops: bool) -> None:
        rules = config.engine.rules
        self._block_size = config.block_size
        self._num_drafts = num_drafts
        self._drops = drops
        self._num_left = max(1, hash_lookahead) if rules.stops_before_last_token else 0
        self._writes_checkpoints = any(group.writes_checkpoints for group in config.kv_groups)
        self._at_end_alone = config.retention_interval == 0
        self._frees_behind_gaps = rules.frees_states_behind_gaps
        threshold = config.engine.long_prefill_token_threshold
        self._longest_chunk = min(config.token_budget, threshold or config.token_budget)

    def last_place(self, num_tokens: int) -> int:
        """The blocks of a prompt after which its last state stands that others can go on from."""
        if self._drops:
            return max(0, num_tokens // self._block_size - 1)
        return max(0, num_tokens - self._num_left) // self._block_size

    def chunk(self, request: Request, num_known: int, start: int, num_tokens: int) -> int:
        """Of so many tokens from `start` on those that a pass takes, with `num_known` known: it ends where a state is wanted, or where blocks do."""
        last = _prefill_end(request, num_known)
        if start >= last:
            return num_tokens
        size, end = self._block_size, start + num_tokens
        stop = end
        if end < last and (end // size * size > start or size <= self._longest_chunk):
            stop = end // size * size
        wanted = []
        if end < last or not self._can_write_checkpoint(start, last):
            wanted.append(self.last_place(num_known) * size)
            if start % size:
                wanted.append((start // size + 1) * size)
        if start < request.junction < end:
            wanted.append(start + (request.junction - start) // size * size)
        for place in wanted:
            if start < place < stop:
                stop = place
        return max(0, stop - start)

    def _can_write_checkpoint(self, start: int, end: int) -> bool:
        size = self._block_size
        return self._writes_checkpoints and start % size == 0 and start + size <= self.last_place(end) * size < end

    def _writes_checkpoint(self, request: Request, num_known: int, start: int, end: int) -> bool:
        if self._at_end_alone and end < _prefill_end(request, num_known):
            return False
        return self._can_write_checkpoint(start, end)

    # -- blocks ----------------------------------------------------------------------------------------------------

    def num_to_take(self, request: Request, num_known: int, num_held: int, start: int, end: int) -> int:
        """Blocks of each group for a chunk, as vLLM foretells them, of a request whose tables have `num_held`; below 0 where they have more than that."""
        most = 1 + int(self._writes_checkpoint(request, num_known, start, end))
        if request.states is None:
            most += self._num_drafts
        return min(self._num_blocks(end) + self._num_drafts - num_held, most)

    def take(self, request: Request, num_known: int, num_hit: int, start: int, end: int) -> int:
        """Take the blocks of a group for a chunk, behind `num_hit` of which the last one is held; how many."""
        states = request.states
        is_first = states is None
        if states is None:
            states = request.states = HeldStates(num_hit)
        writes = self._writes_checkpoint(request, num_known, start, end)
        total, before = self._num_blocks(end) + self._num_drafts, states.end
        states.checkpoint = self._num_blocks(end) - 2 if writes else -1
        states.checkpoint_place = self.last_place(end)
        if total <= before and not writes:
            return 0
        states.before = before - 1 if is_first else before - 1 - self._num_drafts
        first = total - self._num_drafts - 1 - int(writes)
        states.end = max(before, first)
        if not is_first:
            for number in range(before - self._num_drafts, min(before, first)):
                states.numbers.remove(number)
                states.add(1)
        num_new = max(0, total - states.end)
        states.add(num_new)
        return num_new

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def passed(self, states: HeldStates, num_processed: int) -> list[int]:
        """The blocks that nothing needs any more once so many tokens are processed, the last first; they are held no more."""
        place = max(0, num_processed - 1) // self._block_size
        passed = [number for number in reversed(states.numbers) if number < place]
        if not self._frees_behind_gaps:
            passed = [number for behind, number in enumerate(passed) if number in (place - 1 - behind, states.before)]
        for number in passed:
            states.numbers.remove(number)
        return passed


def _prefill_end(request: Request, num_known: int) -> int:
    """Up to where chunks are cut: of a preempted request, all but the last token."""
    return max(request.num_prompt_tokens, num_known - 1)
