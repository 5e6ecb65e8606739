"""The prefix cache: copies of the block contents that several requests may ask for, and how many requests hold each copy.

A content is identified by its key, a number; a copy of it, which is one physical block, by its id. Contents that no other
request can ask for are not kept here; the pool only counts their blocks.
Invariant: `_oldest[key]` is the copy that a lookup finds; younger ones wait in `_younger[key]` in order of age.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Copies = NDArray[np.int64]
NO_COPY = -1
NO_COPIES: Copies = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class KeyedBlocks:
    """A request's leading blocks that have a key: their keys, and by KV group the copies that it holds.

    The copies are of consecutive blocks from `first` on; a sliding window has passed those before.
    """

    keys: Keys
    held: list[Copies]
    first: list[int]

    def end(self, group: int) -> int:
        """The number of the block after the last held copy."""
        return self.first[group] + len(self.held[group])


class PrefixCache:
    """Copies 0..capacity-1 of keyed contents; all operations take a request's blocks at once."""

    def __init__(self, capacity: int, num_keys: int) -> None:
        self._num_keys = num_keys
        self._oldest = np.full(num_keys, NO_COPY, dtype=np.int64)
        self._has_younger = np.zeros(num_keys, dtype=np.bool_)
        self._younger: dict[int, deque[int]] = {}
        self._key = np.zeros(capacity, dtype=np.int64)
        self._num_holders = np.zeros(capacity, dtype=np.int64)
        self._unused = np.arange(capacity - 1, -1, -1, dtype=np.int64)
        self._num_unused = capacity
        self.num_registered = 0
        self._handed_out: NDArray[np.bool_] | None = None

    def new_keys(self, count: int, num_groups: int) -> Keys:
        """New keys for `count` blocks; key k stands for contents k * num_groups and following, one for each KV group."""
        first, self._num_keys = self._num_keys, self._num_keys + count * num_groups
        if self._num_keys > len(self._oldest):
            missing = max(self._num_keys - len(self._oldest), len(self._oldest))
            self._oldest = np.concatenate((self._oldest, np.full(missing, NO_COPY, dtype=np.int64)))
            self._has_younger = np.concatenate((self._has_younger, np.zeros(missing, dtype=np.bool_)))
        return np.arange(first // num_groups, first // num_groups + count, dtype=np.int64)

    def find(self, keys: Keys) -> Copies:
        """The oldest copy of each content, NO_COPY where there is none."""
        return self._oldest[keys]

    def match(self, keys: Keys) -> Copies:
        """The oldest copies of the leading keys, up to the first that has none."""
        copies: Copies = self._oldest[keys]
        if len(copies) == 0:
            return copies
        first = int(copies.argmin())  # the first that has none, if any: NO_COPY is less than any number
        return copies[:first] if copies[first] == NO_COPY else copies

    def drain_handed_out(self) -> NDArray[np.bool_]:
        """Which copies somebody has taken hold of, or were evicted, since the last time; it is noted from the first time on."""
        drained, self._handed_out = self._handed_out, np.zeros(len(self._key), dtype=np.bool_)
        return self._handed_out if drained is None else drained

    def num_unheld(self, copies: Copies) -> int:
        """How many of these copies no request holds, so that they are in the free list."""
        return len(copies) - int(np.count_nonzero(self._num_holders[copies]))

    def are_held_once(self, copies: Copies) -> bool:
        """Whether each of these copies has a single holder."""
        return bool((self._num_holders[copies] == 1).all())

    def hold(self, copies: Copies) -> Copies:
        """Add a holder to each copy; returns the copies that had none."""
        num_holders = self._num_holders[copies]
        self._num_holders[copies] = num_holders + 1
        if self._handed_out is not None:
            self._handed_out[copies] = True
        return _at_zero(num_holders, copies)

    def drop(self, copies: Copies) -> Copies:
        """Remove a holder from each copy; returns the copies that have none now, in the order given."""
        num_holders = self._num_holders[copies] - 1
        self._num_holders[copies] = num_holders
        return _at_zero(num_holders, copies)

    def register(self, keys: Keys) -> Copies:
        """Make new copies of these contents, each with one holder; returns their ids."""
        self._num_unused -= len(keys)
        self.num_registered += len(keys)
        copies = self._unused[self._num_unused : self._num_unused + len(keys)].copy()
        self._key[copies] = keys
        self._num_holders[copies] = 1
        older = self._oldest[keys]
        if len(older) and older[older.argmax()] != NO_COPY:
            has_older = older != NO_COPY
            for key, copy in zip(keys[has_older].tolist(), copies[has_older].tolist(), strict=True):
                self._younger.setdefault(key, deque()).append(copy)
            self._has_younger[keys[has_older]] = True
            self._oldest[keys[~has_older]] = copies[~has_older]
        else:
            self._oldest[keys] = copies
        return copies

    def evict(self, copies: Copies) -> None:
        """Forget copies that no request holds; lookups then find the next oldest copy of the content."""
        keys = self._key[copies]
        if self._handed_out is not None:
            self._handed_out[copies] = True
        if self._younger:
            is_one_of_many = self._has_younger[keys]
            for key, copy in zip(keys[is_one_of_many].tolist(), copies[is_one_of_many].tolist(), strict=True):
                self._forget(key, copy)
            keys = keys[~is_one_of_many]
        self._oldest[keys] = NO_COPY
        self._unused[self._num_unused : self._num_unused + len(copies)] = copies
        self._num_unused += len(copies)

    def _forget(self, key: int, copy: int) -> None:
        """Forget one of several copies of a content, or the last of them."""
        younger = self._younger.get(key)
        if younger is None:
            self._oldest[key] = NO_COPY
        elif self._oldest[key] == copy:
            self._oldest[key] = younger.popleft()
        else:
            younger.remove(copy)
        if younger is not None and not younger:
            del self._younger[key]
            self._has_younger[key] = False


def _at_zero(counts: Keys, copies: Copies) -> Copies:
    """The copies whose count is 0: mostly all or none."""
    num_others = np.count_nonzero(counts)
    if num_others == 0:
        return copies
    return NO_COPIES if num_others == len(copies) else copies[counts == 0]
