"""What the CPU tier keeps: of each request, and in its cache."""

from collections.abc import Sequence

import numpy as np

from sim.engine.records import Ints
from sim.engine.walking.eviction import INSERTED, MISSED, REUSED, SEEN, Access, Chunk, EvictionPolicy

NOTHING: Ints = np.zeros(0, dtype=np.int64)


class Chunks:
    """Of one request: the keys of its chunks as far as they are known, how many leading ones have been dealt with (`num_doubted` of groups with a drafter's layers) and
    were found when it was last looked up, which the
    CPU was offered or has loaded from, what it did with each, its transfers under way, the copies it
    took for a load of which the tier does not know yet, those it held as it ended, and whether it has been scheduled since it was last looked up.
    `left` are the copies of blocks that are yet to be stored, by block and group; `num_known` blocks it held after the last pass.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.num_stored = 0
        self.num_doubted = 0
        self.num_found = 0
        self.access = Access()
        self.num_jobs = 0
        self.taken: Ints = NOTHING
        self.copies: Ints = NOTHING
        self.left: dict[int, int] = {}
        self.num_known = 0
        self.has_joined = False


class CpuCache:
    """Chunks by key, and the policy that says which of them make room.

    Mirrors vLLM's CPUOffloadingManager (v1/kv_offload/cpu/manager.py, 0.33).
    """

    def __init__(self, num_chunks: int, policy: EvictionPolicy) -> None:
        self._room = num_chunks
        self._policy = policy
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def holds(self, key: int) -> bool:
        """Whether a chunk is there, or on its way."""
        return key in self._chunks

    def is_ready(self, key: int) -> bool:
        """Whether a chunk that is there has come."""
        return self._chunks[key].is_ready

    def has_stored(self, key: int) -> bool:
        """Whether a chunk is there, and has come."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk.is_ready

    def is_loading(self, key: int) -> bool:
        """Whether somebody loads a chunk that is there."""
        return self._chunks[key].num_users > 0

    def offer(self, keys: Sequence[int], places: Sequence[int], access: Access) -> list[int] | None:
        """Make room for those that are not there, which are returned; None where there is none to be made.

        `places` are theirs in the prompt. What the request has done with them until then is noted in
        `access`, also where there is no room.
        """
        new = [key for key in keys if key not in self._chunks]
        self._note(keys, places, new, access)
        num_to_evict = len(new) + len(self._chunks) - self._room
        if num_to_evict > 0:
            evicted = self._policy.evict(num_to_evict, self._chunks, set(keys))
            if evicted is None:
                return None
            for key in evicted:
                del self._chunks[key]
        for place, key in zip(places, keys, strict=True):
            if key not in self._chunks:
                self._chunks[key] = Chunk()
                self._policy.insert(key, place, access)
                access.uses[key] |= INSERTED
        return new

    def _note(self, keys: Sequence[int], places: Sequence[int], new: Sequence[int], access: Access) -> None:
        uses = access.uses
        for place, key in zip(places, keys, strict=True):
            if key not in uses and (key not in self._chunks or self._chunks[key].is_ready):
                self._policy.seen(key, place, access)
        for key in reversed(new):
            if not uses.get(key, SEEN) & MISSED:
                self._policy.missed(key)
                uses[key] = uses.get(key, SEEN) | MISSED
        for key in keys:
            if key in self._chunks and self._chunks[key].is_ready:
                uses[key] = _reused(uses.get(key, SEEN))

    def stored(self, keys: Sequence[int]) -> None:
        """They have come."""
        for key in keys:
            self._chunks[key].is_ready = True
            self._policy.idle(key)

    def touch(self, keys: Sequence[int]) -> None:
        """A request with these chunks, from its prompt's head on, has been looked up, or stores something."""
        self._policy.touched(keys, self._chunks)

    def use(self, keys: Sequence[int], places: Sequence[int], access: Access) -> None:
        """A load begins to use them."""
        uses = access.uses
        for place, key in zip(places, keys, strict=True):
            self._chunks[key].num_users += 1
            if key not in uses:
                self._policy.seen(key, place, access)
            uses[key] = _reused(uses.get(key, SEEN))

    def leave(self, keys: Sequence[int]) -> None:
        """A load is over."""
        for key in keys:
            chunk = self._chunks[key]
            chunk.num_users -= 1
            if not chunk.num_users:
                self._policy.idle(key)

    def ended(self, keys: Sequence[int], access: Access) -> None:
        """A request with these chunks has ended, and all that it had to offer has been offered."""
        uses = access.uses
        self._policy.ended([key for key in keys if key in uses], uses)


def _reused(use: int) -> int:
    """What a request has inserted itself it does not reuse."""
    return use if use & INSERTED else use | REUSED
