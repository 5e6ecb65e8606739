"""The prefix cache: copies of the block contents that several requests may ask for, and how many requests hold each copy.

A content is identified by its key, a number; a copy of it, which is one physical block, by its id. Contents that no other
request can ask for are not kept here; the pool only counts their blocks.
Invariants:
- `_oldest[key]` is the copy that a lookup finds. The copies of a content form a ring in order of age: `_younger` of each is
  the next one, of the youngest the oldest, and `_older` the other way round. An unused copy is a ring of its own.
- `_num_twins` is how many copies there are beyond one of each content.
"""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Copies = NDArray[np.int64]
NO_COPY = -1
NO_COPIES: Copies = np.zeros(0, dtype=np.int64)


class KeyedBlocks:
    """A request's leading blocks that have a key: their keys, and by KV group the copies that it holds.

    The copies are of consecutive blocks from `first` on; a sliding window has passed those before. Each group keeps contents
    of its own, which have the keys that `of_group` says.
    """

    __slots__ = ("_keys_by_group", "first", "held", "keys")

    def __init__(self, keys: Keys, held: list[Copies], first: list[int]) -> None:
        self.keys = keys
        self.held = held
        self.first = first
        self._keys_by_group: list[Keys] = []

    def of_group(self, group: int) -> Keys:
        """The keys of a group's blocks."""
        num_groups = len(self.held)
        if num_groups == 1:
            return self.keys
        if not self._keys_by_group:
            self._keys_by_group = [self.keys * num_groups + number for number in range(num_groups)]
        return self._keys_by_group[group]

    def add_keys(self, keys: Keys) -> None:
        """More blocks get keys."""
        self.keys = np.concatenate((self.keys, keys))
        self._keys_by_group = []

    def end(self, group: int) -> int:
        """The number of the block after the last held copy."""
        return self.first[group] + len(self.held[group])


class PrefixCache:
    """Copies 0..capacity-1 of keyed contents; all operations take a request's blocks at once."""

    def __init__(self, capacity: int, num_keys: int) -> None:
        self._num_keys = num_keys
        self._oldest = np.full(num_keys, NO_COPY, dtype=np.int64)
        self._younger = np.arange(capacity, dtype=np.int64)
        self._older = np.arange(capacity, dtype=np.int64)
        self._num_twins = 0
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

    def last_match_end(self, keys: Keys, count: int) -> int:
        """Where the last `count` consecutive keys that have copies end, or fewer where they begin with the first; 0 if there are none."""
        if self._oldest[keys[max(0, len(keys) - count) :]].min(initial=0) != NO_COPY:
            return len(keys)  # the usual case
        ends = np.append((self._oldest[keys] == NO_COPY).nonzero()[0], len(keys))
        is_long_enough = np.diff(ends) > count
        return int(ends[1:][is_long_enough][-1]) if is_long_enough.any() else int(ends[0])

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
        oldest = self._oldest[keys]
        if len(oldest) and oldest[oldest.argmax()] != NO_COPY:
            is_twin = oldest != NO_COPY
            self._oldest[keys[~is_twin]] = copies[~is_twin]
            self._link(oldest[is_twin], copies[is_twin])
        else:
            self._oldest[keys] = copies
        return copies

    def _link(self, oldest: Copies, copies: Copies) -> None:
        """These copies are now the youngest of the contents that have these oldest ones."""
        youngest = self._older[oldest]
        self._younger[youngest] = self._older[oldest] = copies
        self._older[copies] = youngest
        self._younger[copies] = oldest
        self._num_twins += len(copies)

    def evict(self, copies: Copies) -> None:
        """Forget copies of different contents that no request holds; lookups then find the next oldest copy of each."""
        keys = self._key[copies]
        if self._handed_out is not None:
            self._handed_out[copies] = True
        if self._num_twins:
            keys = self._unlink_twins(keys, copies)
        self._oldest[keys] = NO_COPY
        self._unused[self._num_unused : self._num_unused + len(copies)] = copies
        self._num_unused += len(copies)

    def _unlink_twins(self, keys: Keys, copies: Copies) -> Keys:
        """Take copies of these contents that are not the only ones out of their rings; returns the keys of the others."""
        is_twin = self._younger[copies] != copies
        if not is_twin.any():
            return keys
        others: Keys = keys[~is_twin]
        keys, copies = keys[is_twin], copies[is_twin]
        younger, older = self._younger[copies], self._older[copies]
        self._younger[older] = younger
        self._older[younger] = older
        self._younger[copies] = self._older[copies] = copies
        is_oldest = self._oldest[keys] == copies
        self._oldest[keys[is_oldest]] = younger[is_oldest]
        self._num_twins -= len(copies)
        return others

    def are_of_different_contents(self, copies: Copies) -> bool:
        """Whether no two of these copies have the same content."""
        return len(set(self._key[copies].tolist())) == len(copies)


def _at_zero(counts: Keys, copies: Copies) -> Copies:
    """The copies whose count is 0: mostly all or none."""
    num_others = np.count_nonzero(counts)
    if num_others == 0:
        return copies
    return NO_COPIES if num_others == len(copies) else copies[counts == 0]
