"""What the CPU keeps, and which chunks make room there: the least recently used ones, or by ARC.

Written from v1/kv_offload/cpu of vLLM 0.32 and 0.33: the manager notes what each request does, and its policy hears of that when
the request has ended; since 0.33 the LRU one also when a request first has to do with a chunk. `tests/golden/cpu_cache.json.gz` is recorded from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sim.specs.kv_transfer import EvictionPolicyName

Key = tuple[int, int]
"""The KV group whose blocks a chunk holds, and their content."""
Keys = list[Key]
Places = dict[Key, int]
"""Chunks by their place in a prompt."""


@dataclass
class Access:
    """What a request has done with chunks."""

    seen: set[Key] = field(default_factory=set)
    missed: set[Key] = field(default_factory=set)
    inserted: set[Key] = field(default_factory=set)
    reused: set[Key] = field(default_factory=set)
    rank: int | None = None


class Policy(Protocol):
    """The chunks that are there, in an order of its own."""

    def on_store_miss(self, keys: Keys) -> None: ...

    def on_request_access(self, access: Access, positions: Places) -> None:
        """A request has to do with these for the first time; some may not be there."""
        ...

    def insert(self, key: Key, access: Access, position: int) -> None: ...

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None: ...

    def touch(self, keys: Keys, ready: set[Key]) -> None:
        """A request has been looked up, or stores something: these are its chunks, as far as they are known, some of them not there."""
        ...

    def becomes_idle(self, key: Key) -> None: ...

    def candidates(self, idle: Keys) -> Keys:
        """Idle chunks in the order in which they would go."""
        ...

    def remove(self, keys: Keys) -> None:
        """They make room."""
        ...


class Untouched:
    """What is done with a chunk counts when its request has ended."""

    def touch(self, keys: Keys, ready: set[Key]) -> None: ...

    def becomes_idle(self, key: Key) -> None: ...


class Lru(Untouched):
    def __init__(self) -> None:
        self._line: Keys = []

    def on_store_miss(self, keys: Keys) -> None: ...

    def on_request_access(self, access: Access, positions: Places) -> None: ...

    def insert(self, key: Key, access: Access, position: int) -> None:  # noqa: ARG002
        self._line.append(key)

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None:  # noqa: ARG002
        for key in reversed(keys):
            _to_end(self._line, key)

    def candidates(self, idle: Keys) -> Keys:
        return [key for key in self._line if key in idle]

    def remove(self, keys: Keys) -> None:
        self._line = [key for key in self._line if key not in keys]


class RequestLru(Untouched):
    """Since 0.33: what a request stores or finds has the rank of its first use, and of it the tail goes first."""

    def __init__(self) -> None:
        self._ranks: dict[Key, tuple[int, int]] = {}
        self._last = 0

    def on_store_miss(self, keys: Keys) -> None: ...

    def on_request_access(self, access: Access, positions: Places) -> None:
        for key, position in positions.items():
            rank = self._rank(access), -position
            if key in self._ranks:
                self._ranks[key] = max(self._ranks[key], rank)

    def insert(self, key: Key, access: Access, position: int) -> None:
        self._ranks[key] = self._rank(access), -position

    def _rank(self, access: Access) -> int:
        if access.rank is None:
            access.rank = self._next()
        return access.rank

    def _next(self) -> int:
        self._last += 1
        return self._last

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None:  # noqa: ARG002
        for key in reversed(keys):
            if key in self._ranks:
                self._ranks[key] = self._next(), 0

    def candidates(self, idle: Keys) -> Keys:
        return sorted(idle, key=lambda key: (self._ranks[key], key))

    def remove(self, keys: Keys) -> None:
        for key in keys:
            del self._ranks[key]


class Arc(Untouched):
    """T1, T2, B1, B2 as in the paper by Megiddo and Modha, and as vLLM has changed it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._t1_target = 0.0
        self._t1: Keys = []
        self._t2: Keys = []
        self._b1: Keys = []
        self._b2: Keys = []

    def on_store_miss(self, keys: Keys) -> None:
        for key in reversed(keys):
            if key in self._b1:
                step = max(1, len(self._b2) / len(self._b1))
                self._t1_target = min(self._t1_target + step, self._capacity)
            elif key in self._b2:
                step = max(1, len(self._b1) / len(self._b2))
                self._t1_target = max(self._t1_target - step, 0)
            _to_end(self._b1, key)
            _to_end(self._b2, key)

    def on_request_access(self, access: Access, positions: Places) -> None: ...

    def insert(self, key: Key, access: Access, position: int) -> None:  # noqa: ARG002
        self._t1.append(key)
        self._b1 = [ghost for ghost in self._b1 if ghost != key]
        self._b2 = [ghost for ghost in self._b2 if ghost != key]

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None:
        for key in reversed(keys):
            if key in reused and key in self._t1:
                self._t1.remove(key)
                self._t2.append(key)
            elif key in reused:
                _to_end(self._t2, key)
            elif key in insertion_only:
                _to_end(self._t1, key)
                _to_end(self._t2, key)

    def candidates(self, idle: Keys) -> Keys:
        once = [key for key in self._t1 if key in idle]
        again = [key for key in self._t2 if key in idle]
        found: Keys = []
        while once or again:
            num_left = sum(key not in found for key in self._t1)
            takes_t1 = once and (num_left >= int(self._t1_target) or not again)
            found.append(once.pop(0) if takes_t1 else again.pop(0))
        return found

    def remove(self, keys: Keys) -> None:
        self._b1 += [key for key in keys if key in self._t1]
        self._b2 += [key for key in keys if key in self._t2]
        self._t1 = [key for key in self._t1 if key not in keys]
        self._t2 = [key for key in self._t2 if key not in keys]
        self._b1 = self._b1[-self._capacity :]
        self._b2 = self._b2[-self._capacity :]


class TouchedLru:
    """Before 0.31: a line of idle chunks, at whose end those come that become idle, and those that are touched in it."""

    def __init__(self) -> None:
        self._line: Keys = []

    def on_store_miss(self, keys: Keys) -> None: ...

    def on_request_access(self, access: Access, positions: Places) -> None: ...

    def insert(self, key: Key, access: Access, position: int) -> None: ...

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None: ...

    def touch(self, keys: Keys, ready: set[Key]) -> None:  # noqa: ARG002 - a policy's interface
        for key in reversed(keys):
            _to_end(self._line, key)

    def becomes_idle(self, key: Key) -> None:
        self.remove([key])
        self._line.append(key)

    def candidates(self, idle: Keys) -> Keys:
        return [key for key in self._line if key in idle]

    def remove(self, keys: Keys) -> None:
        self._line = [key for key in self._line if key not in keys]


class TouchedArc(Arc):
    """Before 0.31: who is touched again once it is ready has been used again, and a ghost that is touched moves the target."""

    def on_store_miss(self, keys: Keys) -> None: ...

    def on_request_finished(self, keys: Keys, insertion_only: set[Key], reused: set[Key]) -> None: ...

    def touch(self, keys: Keys, ready: set[Key]) -> None:
        for key in reversed(keys):
            if key in self._t1 and key in ready:
                self._t1.remove(key)
                self._t2.append(key)
            elif key in self._t1 or key in self._t2:
                _to_end(self._t1, key)
                _to_end(self._t2, key)
            else:
                super().on_store_miss([key])


class CpuCache:
    """A chunk is ready once stored, and stays while a load uses it."""

    def __init__(
        self,
        num_chunks: int,
        policy: EvictionPolicyName = "lru",
        *,
        ranks_by_request: bool = False,
        touches_at_once: bool = False,
    ) -> None:
        self._room = num_chunks
        self._policy: Policy = Arc(num_chunks) if policy == "arc" else RequestLru() if ranks_by_request else Lru()
        if touches_at_once:
            self._policy = TouchedArc(num_chunks) if policy == "arc" else TouchedLru()
        self._there: Keys = []
        self._storing: set[Key] = set()
        self._loading: Keys = []
        self._access: dict[str, Access] = {}

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, key: Key) -> bool:
        return key in self._there

    def is_ready(self, key: Key) -> bool:
        return key in self._there and key not in self._storing

    def offer(self, request: str, keys: Places) -> Keys | None:
        """Make room for those that are not there, which are returned; None where there is none to be made."""
        access = self._access.setdefault(request, Access())
        new = [key for key in keys if key not in self._there]
        self._policy.on_store_miss([key for key in new if key not in access.missed])
        access.missed.update(new)
        ready = {key for key in keys if self.is_ready(key)}
        self._see(access, {key: place for key, place in keys.items() if key in new or key in ready})
        access.reused |= ready - access.inserted
        num_to_evict = len(self._there) + len(new) - self._room
        if num_to_evict > 0:
            idle = [key for key in self._there if self.is_ready(key) and key not in self._loading and key not in keys]
            if len(idle) < num_to_evict:
                return None
            evicted = self._policy.candidates(idle)[:num_to_evict]
            self._policy.remove(evicted)
            self._there = [key for key in self._there if key not in evicted]
        for key in new:
            self._policy.insert(key, access, keys[key])
        self._there += new
        self._storing.update(new)
        access.inserted.update(new)
        return new

    def stored(self, keys: Sequence[Key]) -> None:
        self._storing.difference_update(keys)
        for key in keys:
            self._policy.becomes_idle(key)

    def touch(self, keys: Keys) -> None:
        """A request with these chunks has been looked up, or stores something."""
        self._policy.touch(keys, set(filter(self.is_ready, keys)))

    def use(self, request: str, keys: Places) -> None:
        access = self._access.setdefault(request, Access())
        self._see(access, keys)
        access.reused |= set(keys) - access.inserted
        self._loading += keys

    def _see(self, access: Access, keys: Places) -> None:
        self._policy.on_request_access(access, {key: place for key, place in keys.items() if key not in access.seen})
        access.seen.update(keys)

    def leave(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._loading.remove(key)
            if key not in self._loading:
                self._policy.becomes_idle(key)

    def ended(self, request: str, keys: Sequence[Key]) -> None:
        """All its chunks in order, group after group at each place; those are told of that it had to do with."""
        access = self._access.pop(request, Access())
        seen = [key for key in keys if key in access.seen]
        self._policy.on_request_finished(seen, access.inserted - access.reused, access.reused)


def _to_end(keys: Keys, key: Key) -> None:
    if key in keys:
        keys.remove(key)
        keys.append(key)
