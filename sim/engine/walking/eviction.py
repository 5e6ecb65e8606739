"""Which chunks make room on the CPU: the least recently used ones, or by ARC (adaptive replacement).

Mirrors vLLM's v1/kv_offload/cpu/policies (0.33, and 0.32's LRU). A request counts as one use of its chunks, when it has ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

Uses = dict[int, int]
"""What a request did with chunks, by key."""
Keys = dict[int, None]
"""In order, the first to go first."""
SEEN, MISSED, INSERTED, REUSED = 0, 1, 2, 4
"""Looked at; not there when it was offered; there since it was offered; used while it was there, inserted by another."""


class Chunk:
    """A chunk in the CPU's memory: ready once it is stored; it stays while a load uses it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.num_users = 0

    @property
    def is_idle(self) -> bool:
        """Whether it may go."""
        return self.is_ready and not self.num_users


class Access:
    """What a request has done with chunks, and the rank that it has since it first did anything."""

    def __init__(self) -> None:
        self.uses: Uses = {}
        self.rank = 0


class EvictionPolicy:
    """The order of all chunks that are there, by key."""

    def seen(self, key: int, place: int, access: Access) -> None:
        """A request offers or finds its so-many-th chunk for the first time, which may not be there."""

    def missed(self, key: int) -> None:
        """A request offers a chunk that is not there, for the first time."""

    def insert(self, key: int, place: int, access: Access) -> None:
        """There is a new chunk, a request's so-many-th."""
        raise NotImplementedError

    def ended(self, keys: Sequence[int], uses: Uses) -> None:
        """A request has ended that has used these, from its prompt's head on; some may have gone."""
        raise NotImplementedError

    def touched(self, keys: Sequence[int], chunks: Mapping[int, Chunk]) -> None:
        """A request has been looked up, or stores something: these are its chunks, from its prompt's head on; some may not be there."""

    def idle(self, key: int) -> None:
        """A chunk has come, or nobody loads it any more."""

    def evict(self, count: int, chunks: Mapping[int, Chunk], kept: set[int]) -> list[int] | None:
        """Drop so many idle chunks that are not to be kept; None, with nothing done, where there are fewer."""
        raise NotImplementedError


class LeastRecentlyUsed(EvictionPolicy):
    """One line; a prompt's head ends up as the most recent."""

    def __init__(self) -> None:
        self._keys: Keys = {}

    def insert(self, key: int, place: int, access: Access) -> None:  # noqa: ARG002 - a policy's interface
        self._keys[key] = None

    def ended(self, keys: Sequence[int], uses: Uses) -> None:  # noqa: ARG002 - a policy's interface
        for key in reversed(keys):
            if key in self._keys:
                renew(self._keys, key)

    def evict(self, count: int, chunks: Mapping[int, Chunk], kept: set[int]) -> list[int] | None:
        found: list[int] = []
        for key in _idle(self._keys, chunks, kept):
            found.append(key)
            if len(found) == count:
                break
        if len(found) < count:
            return None
        for key in found:
            del self._keys[key]
        return found


class RankedByRequest(EvictionPolicy):
    """Least recently used, where all chunks that a request has stored or found share its rank until it ends; its tail goes first.

    `_heap` may hold ranks that a chunk no longer has.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._last = 0

    def seen(self, key: int, place: int, access: Access) -> None:
        rank = self._rank_of(access)
        if key in self._ranks and self._ranks[key] < (rank, -place):
            self._rank(key, rank, -place)

    def insert(self, key: int, place: int, access: Access) -> None:
        self._rank(key, self._rank_of(access), -place)

    def ended(self, keys: Sequence[int], uses: Uses) -> None:  # noqa: ARG002 - a policy's interface
        for key in reversed(keys):
            if key in self._ranks:
                self._last += 1
                self._rank(key, self._last, 0)

    def evict(self, count: int, chunks: Mapping[int, Chunk], kept: set[int]) -> list[int] | None:
        found: list[int] = []
        passed: list[tuple[int, int, int]] = []
        while self._heap and len(found) < count:
            entry = heappop(self._heap)
            key = entry[2]
            if self._ranks.get(key) != entry[:2]:
                continue
            passed.append(entry)
            if chunks[key].is_idle and key not in kept:
                found.append(key)
        has_room = len(found) == count
        if has_room:
            for key in found:
                del self._ranks[key]
        for entry in passed:
            if entry[2] in self._ranks:
                heappush(self._heap, entry)
        return found if has_room else None

    def _rank_of(self, access: Access) -> int:
        if not access.rank:
            self._last += 1
            access.rank = self._last
        return access.rank

    def _rank(self, key: int, rank: int, tail: int) -> None:
        self._ranks[key] = rank, tail
        heappush(self._heap, (rank, tail, key))
        if len(self._heap) > 64 + 2 * len(self._ranks):
            self._heap = [(*ranked, chunk) for chunk, ranked in self._ranks.items()]
            heapify(self._heap)


class AdaptiveReplacement(EvictionPolicy):
    """ARC: T1 (`_recent`) and T2 (`_frequent`), used once and again, and the ghosts B1 and B2 of what has left either.

    Who offers a ghost moves the target size of T1: up for one that left T1, down for one that left T2.
    """

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self._target = 0.0
        self._recent: Keys = {}
        self._frequent: Keys = {}
        self._left_recent: Keys = {}
        self._left_frequent: Keys = {}

    def missed(self, key: int) -> None:
        once, again = self._left_recent, self._left_frequent
        if key in once:
            self._target = min(self._target + max(1.0, len(again) / len(once)), float(self._num_chunks))
            renew(once, key)
        elif key in again:
            self._target = max(self._target - max(1.0, len(once) / len(again)), 0.0)
            renew(again, key)

    def insert(self, key: int, place: int, access: Access) -> None:  # noqa: ARG002 - a policy's interface
        self._recent[key] = None
        self._left_recent.pop(key, None)
        self._left_frequent.pop(key, None)

    def ended(self, keys: Sequence[int], uses: Uses) -> None:
        for key in reversed(keys):
            if uses[key] & REUSED:
                if key in self._recent:
                    del self._recent[key]
                    self._frequent[key] = None
                elif key in self._frequent:
                    renew(self._frequent, key)
            elif uses[key] & INSERTED:
                if key in self._recent:
                    renew(self._recent, key)
                elif key in self._frequent:
                    renew(self._frequent, key)

    def evict(self, count: int, chunks: Mapping[int, Chunk], kept: set[int]) -> list[int] | None:
        recent, frequent = _idle(self._recent, chunks, kept), _idle(self._frequent, chunks, kept)
        found: list[int] = []
        num_recent = len(self._recent)
        for _ in range(count):
            is_over = num_recent >= int(self._target)
            key = next(chain(recent, frequent) if is_over else chain(frequent, recent), None)
            if key is None:
                return None
            num_recent -= key in self._recent
            found.append(key)
        for key in found:
            self._drop(key)
        _trim(self._left_recent, self._num_chunks)
        _trim(self._left_frequent, self._num_chunks)
        return found

    def _drop(self, key: int) -> None:
        if key in self._recent:
            del self._recent[key]
            self._left_recent[key] = None
        else:
            del self._frequent[key]
            self._left_frequent[key] = None


def _idle(keys: Keys, chunks: Mapping[int, Chunk], kept: set[int]) -> Iterator[int]:
    for key in keys:  # not an expression, of which the compiler would make a list
        if chunks[key].is_idle and key not in kept:
            yield key


def renew(keys: Keys, key: int) -> None:
    """It becomes the last to go."""
    del keys[key]
    keys[key] = None


def _trim(keys: Keys, most: int) -> None:
    while len(keys) > most:
        del keys[next(iter(keys))]
