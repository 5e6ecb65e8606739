"""Which chunks make room on the CPU before vLLM 0.31, where what is looked for, stored or loaded is the most recent at once.

Mirrors v1/kv_offload/cpu/policies of 0.30, and says which policy a version has.
"""

from collections.abc import Mapping, Sequence

from sim.engine.walking.eviction import (
    Access,
    AdaptiveReplacement,
    Chunk,
    EvictionPolicy,
    LeastRecentlyUsed,
    RankedByRequest,
    Uses,
    renew,
)
from sim.specs.kv_transfer import EvictionPolicyName
from sim.specs.rules import SchedulingRules


class TouchedRecently(LeastRecentlyUsed):
    """Idle chunks in one line, at whose end those stand that have become idle, and those that have been touched in it."""

    def insert(self, key: int, place: int, access: Access) -> None:
        """It is not idle before it has come."""

    def ended(self, keys: Sequence[int], uses: Uses) -> None:
        """Each use has counted."""

    def touched(self, keys: Sequence[int], chunks: Mapping[int, Chunk]) -> None:  # noqa: ARG002 - a policy's interface
        for key in reversed(keys):
            if key in self._keys:
                renew(self._keys, key)

    def idle(self, key: int) -> None:
        self._keys.pop(key, None)
        self._keys[key] = None


class TouchedAdaptively(AdaptiveReplacement):
    """What is touched again once it is there has been used again; a ghost that is touched moves the target size."""

    def missed(self, key: int) -> None:
        """An offer alone moves nothing."""

    def ended(self, keys: Sequence[int], uses: Uses) -> None:
        """Each use has counted."""

    def touched(self, keys: Sequence[int], chunks: Mapping[int, Chunk]) -> None:
        for key in reversed(keys):
            if key in self._recent:
                if chunks[key].is_ready:
                    del self._recent[key]
                    self._frequent[key] = None
                else:
                    renew(self._recent, key)
            elif key in self._frequent:
                renew(self._frequent, key)
            else:
                super().missed(key)


def eviction_policy(name: EvictionPolicyName, num_chunks: int, rules: SchedulingRules) -> EvictionPolicy:
    """By vLLM's name."""
    if name == "arc":
        return TouchedAdaptively(num_chunks) if rules.touches_chunks_at_once else AdaptiveReplacement(num_chunks)
    if rules.touches_chunks_at_once:
        return TouchedRecently()
    return RankedByRequest() if rules.ranks_chunks_by_request else LeastRecentlyUsed()
