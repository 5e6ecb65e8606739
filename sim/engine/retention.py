"""Which blocks of sliding windows and states stay cached: those that are needed at the places of a prompt where others can go on.

Mirrors `reachable_block_mask` of SlidingWindowManager (vLLM 0.33, v1/core/single_type_kv_cache_manager.py) and `replay_boundaries` of
kv_cache_coordinator.py: behind the same prompt, where prompts have parted before, and every so many tokens.
"""

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request

Ranges = list[tuple[int, int]]


class Retention:
    """`drops`: a drafter has the last block of a hit computed again, so that prompts are gone on with one block earlier, and groups with its layers keep that block too.

    Who `knows_junctions` keeps what is needed where prompts have parted.
    """

    def __init__(self, config: SchedulerConfig, interval: int, *, drops: bool, knows_junctions: bool = True) -> None:
        self._block_size = config.block_size
        self._segment = interval // config.block_size
        self._drops = drops
        self._knows_junctions = knows_junctions
        self._windows = [group.window for group in config.kv_groups]
        self._num_dropped = [int(drops and drops_here) for drops_here in config.drops_last_hit]
        self._keeps_before_junction = config.engine.rules.keeps_block_before_junction

    def last_token(self, request: Request) -> int:
        """Of those in blocks that may stay: where prompts part at a prompt's end, the block behind may be one of answers."""
        last = request.num_prompt_tokens + request.max_tokens
        if self._segment:
            return last
        return min(last, max(request.num_prompt_tokens, request.junction + self._block_size * max(self._num_dropped)))

    def keeps_state(self, group: int, request: Request, num_blocks: int) -> bool:
        """Whether a group's state after so many blocks stays."""
        if self.is_segment(num_blocks):
            return True
        return any(tokens // self._block_size == num_blocks for tokens in self._boundaries(group, request))

    def is_segment(self, num_blocks: int) -> bool:
        """Whether states stay after so many blocks of any prompt."""
        return self._segment > 0 and num_blocks % self._segment == 0

    def ranges(
        self, group: int, request: Request, first: int, last: int, num_prompt_tokens: int | None = None
    ) -> Ranges:
        """Of the blocks of a group with a window from number `first` to before `last`, those that stay: from where to where, in order.

        A request that was preempted may have a longer prompt than its own: all that it knows.
        """
        window, dropped = self._windows[group], self._num_dropped[group]
        assert window is not None, "full attention keeps all"
        needed = -(-(window - 1) // self._block_size) + dropped
        if 0 < self._segment <= needed:
            return [(first, last)]
        ends = [tokens // self._block_size for tokens in self._boundaries(group, request, num_prompt_tokens)]
        if self._segment:
            ends += range(self._segment, last + self._segment, self._segment)
        found: Ranges = []
        for end in sorted(set(ends)):
            start, stop = max(first, end + dropped - needed), min(last, end + dropped)
            if start >= stop:
                continue
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], stop
            else:
                found.append((start, stop))
        return found

    def _boundaries(self, group: int, request: Request, num_prompt_tokens: int | None = None) -> list[int]:
        """In tokens."""
        size = self._block_size
        prompt = request.num_prompt_tokens if num_prompt_tokens is None else num_prompt_tokens
        junction = request.junction if self._knows_junctions else 0
        found = [junction] if junction else []
        if not self._drops:
            return [prompt - 1, *found]
        if junction and self._num_dropped[group] and self._keeps_before_junction:
            found.append(junction - size)
        return [*(max(0, (tokens // size - 1) * size) for tokens in (prompt - 1, prompt)), *found]
