"""Which blocks of sliding windows and states stay cached: those that are needed at the places of a prompt where others can go on.

Mirrors `reachable_block_mask` of SlidingWindowManager (vLLM 0.33, v1/core/single_type_kv_cache_manager.py) and `replay_boundaries` of
kv_cache_coordinator.py: behind the same prompt, where prompts have parted before, and every so many tokens.
"""

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request

Ranges = list[tuple[int, int]]


class Retention:
    """Where drafters have the last block of a hit computed again, `num_dropped` is 1."""

    def __init__(self, config: SchedulerConfig, interval: int, num_dropped: int) -> None:
        self._block_size = config.block_size
        self._segment = interval // config.block_size
        self._num_dropped = num_dropped
        self._keeps_before_junction = config.engine.rules.keeps_block_before_junction

    def last_token(self, request: Request) -> int:
        """Of those in blocks that may stay."""
        return request.num_prompt_tokens + (request.max_tokens if self._segment else 0)

    def keeps_state(self, request: Request, num_blocks: int) -> bool:
        """Whether the state after so many blocks stays."""
        if self.is_segment(num_blocks):
            return True
        return any(tokens // self._block_size == num_blocks for tokens in self._boundaries(request))

    def is_segment(self, num_blocks: int) -> bool:
        """Whether states stay after so many blocks of any prompt."""
        return self._segment > 0 and num_blocks % self._segment == 0

    def ranges(self, window: int, request: Request, first: int, last: int) -> Ranges:
        """Of a window's blocks from number `first` to before `last`, those that stay: from where to where, in order."""
        needed = -(-(window - 1) // self._block_size) + self._num_dropped
        if 0 < self._segment <= needed:
            return [(first, last)]
        ends = [tokens // self._block_size for tokens in self._boundaries(request)]
        if self._segment:
            ends += range(self._segment, last + self._segment, self._segment)
        found: Ranges = []
        for end in sorted(set(ends)):
            start, stop = max(first, end + self._num_dropped - needed), min(last, end + self._num_dropped)
            if start >= stop:
                continue
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], stop
            else:
                found.append((start, stop))
        return found

    def _boundaries(self, request: Request) -> list[int]:
        """In tokens."""
        size, prompt, junction = self._block_size, request.num_prompt_tokens, request.junction
        found = [junction] if junction else []
        if not self._num_dropped:
            return [prompt - 1, *found]
        if junction and self._keeps_before_junction:
            found.append(junction - size)
        return [*(max(0, (tokens // size - 1) * size) for tokens in (prompt - 1, prompt)), *found]
