"""The CPU's chunks come and go as under vLLM's own manager and its policies, LRU and ARC."""

import gzip
import json
from pathlib import Path

import pytest

from sim.engine.walking.chunks import Chunks, CpuCache
from sim.engine.walking.touched_eviction import eviction_policy
from sim.specs.kv_transfer import EvictionPolicyName
from sim.specs.rules import SchedulingRules
from tests.reference import cpu_cache as naive

RECORDED = json.loads(gzip.decompress((Path(__file__).parent.parent / "golden/cpu_cache.json.gz").read_bytes()))


class Fast:
    """The product's cache, asked as the naive one is."""

    def __init__(self, num_chunks: int, policy: EvictionPolicyName) -> None:
        self._cache = CpuCache(num_chunks, eviction_policy(policy, num_chunks, SchedulingRules()))
        self._chunks: dict[str, Chunks] = {}
        self.stored, self.leave = self._cache.stored, self._cache.leave

    def __contains__(self, key: int) -> bool:
        return self._cache.holds(key)

    def offer(self, request: str, keys: list[int]) -> list[int] | None:
        return self._cache.offer(keys, range(len(keys)), self._of(request).access)

    def use(self, request: str, keys: list[int]) -> None:
        self._cache.use(keys, range(len(keys)), self._of(request).access)

    def ended(self, request: str, keys: list[int]) -> None:
        self._cache.ended(keys, self._of(request).access)

    def _of(self, request: str) -> Chunks:
        return self._chunks.setdefault(request, Chunks())


class Naive:
    """The naive one, whose chunks have a KV group."""

    def __init__(self, num_chunks: int, policy: EvictionPolicyName) -> None:
        self._cache = naive.CpuCache(num_chunks, policy)

    def __contains__(self, key: int) -> bool:
        return (0, key) in self._cache

    def offer(self, request: str, keys: list[int]) -> list[int] | None:
        new = self._cache.offer(request, {(0, key): place for place, key in enumerate(keys)})
        return None if new is None else [key for _, key in new]

    def use(self, request: str, keys: list[int]) -> None:
        self._cache.use(request, {(0, key): place for place, key in enumerate(keys)})

    def ended(self, request: str, keys: list[int]) -> None:
        self._cache.ended(request, [(0, key) for key in keys])

    def stored(self, keys: list[int]) -> None:
        self._cache.stored([(0, key) for key in keys])

    def leave(self, keys: list[int]) -> None:
        self._cache.leave([(0, key) for key in keys])


@pytest.mark.parametrize("cache_class", [Fast, Naive])
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_cache_does_what_was_recorded(policy: EvictionPolicyName, cache_class: type[Fast | Naive]) -> None:
    """What an offer finds room for, and what it puts out, at every offer of 60 recorded runs of either policy."""
    cases = [case for case in RECORDED["cases"] if case["policy"] == policy]
    for case in cases:
        cache = cache_class(case["num_chunks"], policy)
        there: set[int] = set()
        for number, (what, *facts) in enumerate(case["ops"]):
            if what == "offer":
                request, keys, stored, *evicted = facts  # there are none where there is no room
                assert cache.offer(request, keys) == stored, number
                there |= set(stored or ())
                there -= set(*evicted)
                gone = {key for keys in evicted for key in keys}
                assert all(key in cache for key in there), number
                assert not any(key in cache for key in gone), number
            elif what == "load":
                cache.use(*facts)
            elif what == "stored":
                cache.stored(*facts)
            elif what == "loaded":
                cache.leave(*facts)
            else:
                cache.ended(*facts)
    assert len(cases) == 60


@pytest.mark.parametrize(
    ("policy", "touches_at_once", "evicted"), [("lru", True, 2), ("lru", False, 1), ("arc", True, 2)]
)
def test_before_0_31_a_look_counts_at_once(policy: EvictionPolicyName, evicted: int, *, touches_at_once: bool) -> None:
    """A and B store chunks 1 and 2, C is looked up, which begins with 1, and D takes the third of room for two: since 0.31 C counts once it has ended."""
    rules = SchedulingRules(touches_chunks_at_once=touches_at_once)
    fast = CpuCache(2, eviction_policy(policy, 2, rules))
    slow = naive.CpuCache(2, policy, touches_at_once=touches_at_once)
    for request, key in (("A", 1), ("B", 2)):
        fast.offer([key], [0], Chunks().access)
        fast.stored([key])
        slow.offer(request, {(0, key): 0})
        slow.stored([(0, key)])
    fast.touch([1, 9])
    slow.touch([(0, 1), (0, 9)])
    assert fast.offer([3], [0], Chunks().access) == [3]
    assert slow.offer("D", {(0, 3): 0}) == [(0, 3)]
    left = {1, 2, 3} - {evicted}
    assert {key for key in (1, 2, 3) if fast.holds(key)} == {key for key in (1, 2, 3) if (0, key) in slow} == left
