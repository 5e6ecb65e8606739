"""What is to be optimised within which limits, and how candidates compare."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.errors import ConfigError, nearest
from sim.metrics.goals import GOALS, Goal, Metrics
from sim.metrics.slo import Slo, judged_by_request


class Target(NamedTuple):
    """One goal or several, the first of them deciding, and the limits that a good candidate keeps."""

    goals: tuple[Goal, ...]
    slos: tuple[Slo, ...]

    @property
    def limits(self) -> tuple[Slo, ...]:
        """The limits on percentiles; under `goodput` they judge each request instead."""
        return () if any(goal.name == "goodput" for goal in self.goals) else self.slos

    def violation(self, metrics: Metrics) -> float:
        """How far the worst percentile is above its limit, as a share of it; 0 where all are kept.

        Where requests that were not served make a percentile infinite: their share, and that of the others.
        """
        return max((excess(slo, metrics) + _unserved(slo, metrics) for slo in self.limits), default=0.0)

    def lateness(self, metrics: Metrics) -> float:
        """The same without requests that were not served, which are the same for all candidates."""
        return max((excess(slo, metrics) for slo in self.limits), default=0.0)

    def rank(self, metrics: Metrics) -> tuple[float, ...]:
        """Sorts candidates: kept limits first, then the goals in order."""
        return (self.violation(metrics), *(goal.loss(metrics) for goal in self.goals))


def excess(slo: Slo, metrics: Metrics) -> float:
    """How far a percentile is above its limit, as a share of it; 0 where it is kept or nothing was measured.

    Where requests that were not served make it infinite, it is that of the others.
    """
    value = metrics.get(slo.key if _unserved(slo, metrics) else slo.judged_key)
    return 0.0 if value is None else max(0.0, value / slo.limit_ms - 1.0)


def _unserved(slo: Slo, metrics: Metrics) -> float:
    """The share of requests that were not served, where that makes the percentile infinite."""
    return share_unserved(metrics) if metrics.get(slo.judged_key) is None else 0.0


def share_unserved(metrics: Metrics) -> float:
    """The share of requests that were rejected or failed."""
    arrived = metrics.get("arrived")
    return (arrived - metrics["completed"]) / arrived if arrived else 0.0


def parse_target(objective: str, slos: Sequence[Slo]) -> Target:
    """`throughput`, or several goals with commas between. Raises ConfigError for what cannot be optimised."""
    names = [name.strip() for name in objective.split(",")]
    for name in names:
        if name not in GOALS:
            raise ConfigError(
                f"--objective must be one of {', '.join(GOALS)}, or several with commas, got {name!r}.{nearest(name, GOALS)}"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"--objective names a goal twice: {objective}.")
    if "goodput" in names:
        _check_goodput(slos)
    return Target(tuple(GOALS[name] for name in names), tuple(slos))


def _check_goodput(slos: Sequence[Slo]) -> None:
    if not slos:
        raise ConfigError("--objective goodput counts requests within limits; give some, such as --slo ttft_p99=500ms.")
    judged_by_request(slos)


def pareto(rows: Sequence[tuple[float, ...]]) -> list[int]:
    """Places of the rows that no other row beats in one loss without losing in another; of equal rows the first."""
    kept: list[int] = []
    for place in sorted(range(len(rows)), key=lambda index: (rows[index], index)):
        if not any(all(a <= b for a, b in zip(rows[other], rows[place], strict=True)) for other in kept):
            kept.append(place)
    return sorted(kept)
