"""What host memory has of a prompt behind the GPU's own hit: a prefix of full attention, and of windows what the next token looks at.

Mirrors `_lookup_complete_chunks` and `_sliding_window_lookup` of vLLM's OffloadingConnector (0.33). Where there are windows a chunk is one block.
"""

from collections.abc import Sequence

from sim.engine.config import KVGroup
from sim.engine.walking.chunks import CpuCache

PENDING = -1
"""Some of it is still being stored: ask again."""


class TierLookup:
    """Of a request it is told what each group's blocks are known by. What others load is waited for, where the GPU caches prefixes. Groups that it `doubts`, for
    drafts are written into them, are asked for a chunk more than is then used.
    """

    def __init__(
        self,
        cpu: CpuCache,
        groups: Sequence[KVGroup],
        chunk_tokens: int,
        doubts: Sequence[bool],
        *,
        caches_prefixes: bool,
    ) -> None:
        self._cpu = cpu
        self._doubts = doubts
        self._caches_prefixes = caches_prefixes
        self._chunk_tokens = chunk_tokens
        self._windows = [group.window or 0 for group in groups]
        self._num_chunks = [
            1 if group.keeps_states else -(-window // chunk_tokens)
            for group, window in zip(groups, self._windows, strict=True)
        ]
        windows = [number for number, window in enumerate(self._windows) if window]
        self._by_window = sorted(windows, key=lambda number: -self._num_chunks[number])
        self._end = self._found = 0
        self._has_left: set[int] = set()
        self._is_pending = False
        self._ends_with_chunk = any(group.keeps_states for group in groups)
        self._every = [number for number, window in enumerate(self._windows) if not window] + self._by_window

    def num_found(self, keys: Sequence[Sequence[int]], num_local: int, num_tokens: int) -> int:
        """Tokens behind the local hit, or PENDING; with windows the last known token is computed in any case.

        Each group may shorten what is asked of the others, and windows have to have the end of what is left.
        """
        size = self._chunk_tokens
        self._end = min(num_tokens - bool(self._by_window), num_tokens // size * size)
        if self._ends_with_chunk:
            self._end = self._end // size * size
        self._found, self._is_pending = 0, False
        self._has_left.clear()
        turn: Sequence[int] = self._every
        while turn:
            turn = self._ask(turn, keys, num_local, num_tokens)
            if not self._found:
                return 0
        first = num_local // self._chunk_tokens
        if self._is_pending or (self._caches_prefixes and self._is_loading(keys, first, num_local + self._found)):
            return PENDING
        return self._found

    def _ask(
        self, turn: Sequence[int], keys: Sequence[Sequence[int]], num_local: int, num_tokens: int
    ) -> Sequence[int]:
        """Each of these groups in turn how far it reaches, up to `_end`, where the one before did; who is to be asked again of a shorter prefix."""
        size, first = self._chunk_tokens, num_local // self._chunk_tokens
        again: Sequence[int] = ()
        has_asked_window = False
        for number in turn:
            if self._end - num_local < size:
                self._found = 0
                return ()
            leaves = self._doubts[number] and number not in self._has_left
            last = min(-(-self._end // size) + leaves, num_tokens // size)
            reached = self._reach(keys[number], number, first, last, leaves=leaves)
            if reached < 0:
                self._is_pending = True
            else:
                self._end = min(self._end, (reached - leaves) * size)
                if leaves:
                    self._has_left.add(number)
            found = self._end - num_local
            if reached == first or found < size:
                self._found = 0
                return ()
            if found < self._found:
                if not self._doubts[number]:
                    self._has_left.clear()
                if self._is_pending:
                    self._is_pending, again = False, self._every
                elif has_asked_window and not again:
                    again = self._by_window
            has_asked_window |= self._windows[number] > 0
            self._found = found
        return again

    def _reach(self, keys: Sequence[int], number: int, first: int, last: int, *, leaves: bool) -> int:
        """Up to which chunk a group has what it needs; PENDING while some of it is still being stored."""
        if self._windows[number]:
            return self._last_window(keys, self._num_chunks[number] + leaves, first, last)
        return self._prefix(keys, first, last)

    def _prefix(self, keys: Sequence[int], first: int, last: int) -> int:
        """Up to which chunk all are there."""
        cpu, end = self._cpu, first
        is_pending = False
        while end < last and cpu.holds(keys[end]):
            if not cpu.is_ready(keys[end]):
                is_pending = True
            end += 1
        return PENDING if is_pending else end

    def _last_window(self, keys: Sequence[int], needed: int, first: int, last: int) -> int:
        """Behind which chunk so many in a row are there, or all from the first chunk on."""
        cpu = self._cpu
        run, is_pending = 0, False
        for chunk in range(last - 1, first - 1, -1):
            if cpu.holds(keys[chunk]):
                run += 1
                if not cpu.is_ready(keys[chunk]):
                    is_pending = True
            else:
                run, is_pending = 0, False
            if run == needed:
                return PENDING if is_pending else chunk + needed
        return PENDING if is_pending else first + run

    def _is_loading(self, keys: Sequence[Sequence[int]], first: int, end: int) -> bool:
        """Whether somebody loads some of it."""
        last = -(-end // self._chunk_tokens)
        for number in self._every:
            start = max(first, last - self._num_chunks[number]) if self._windows[number] else first
            for key in keys[number][start:last]:
                if self._cpu.is_loading(key):
                    return True
        return False

    def num_passed(self, number: int, num_found: int) -> int:
        """Of so many leading chunks those that a group's window does not look at any more."""
        return max(0, num_found - self._num_chunks[number]) if self._windows[number] else 0

    def num_stored(self, keys: Sequence[Sequence[int]], first: int, last: int) -> int:
        """Chunks from the first on that have been stored, as far as all groups can go on from them."""
        for number in self._every:
            if not self._windows[number]:
                last = self._num_ready(keys[number], first, last)
        while last > first:
            if all(self._is_ready(keys[number], number, first, last) for number in self._by_window):
                break
            last -= 1
        return last - first

    def _num_ready(self, keys: Sequence[int], first: int, last: int) -> int:
        for chunk in range(first, last):
            if not self._cpu.has_stored(keys[chunk]):
                return chunk
        return last

    def _is_ready(self, keys: Sequence[int], number: int, first: int, last: int) -> bool:
        """Whether a window has what the token behind so many chunks looks at."""
        start = max(first, last - -(-(self._windows[number] - 1) // self._chunk_tokens))
        return all(self._cpu.has_stored(key) for key in keys[start:last])
