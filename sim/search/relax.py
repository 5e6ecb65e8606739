"""What to relax where no candidate keeps all limits."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.search.objectives import Target, excess
from sim.search.ranking import Candidate
from sim.search.slo import Slo


class Relaxation(NamedTuple):
    """One limit to raise, with the others as they are, and the candidate that then keeps all."""

    slo: Slo
    to_ms: float
    candidate: Candidate

    def __str__(self) -> str:
        return f"{self.slo.name} from {self.slo.limit_ms:g} ms to {self.to_ms:,.0f} ms"


def relaxations(candidates: Sequence[Candidate], target: Target) -> tuple[Relaxation, ...]:
    """For each limit the least it has to be raised to, on its own.

    Limits for which that is not enough are left out, as are those that rejected requests break however high they are.
    """
    return tuple(_each(candidates, target))


def _each(candidates: Sequence[Candidate], target: Target) -> Iterator[Relaxation]:
    for slo in target.limits:
        others = [other for other in target.limits if other is not slo]
        able = [
            candidate
            for candidate in candidates
            if candidate.metrics.get(slo.judged_key) is not None
            and all(excess(other, candidate.metrics) == 0 for other in others)
        ]
        if able:
            nearest = min(able, key=lambda candidate, slo=slo: candidate.metrics[slo.judged_key])  # type: ignore[misc]
            yield Relaxation(slo, nearest.metrics[slo.judged_key], nearest)
