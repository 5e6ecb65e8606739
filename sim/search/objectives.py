"""The target of a search: its goals and limits, how candidates compare by them, and requests that no candidate can serve."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from sim.errors import ConfigError, TraceError, nearest
from sim.metrics.goals import GOALS, Goal, Metrics
from sim.specs.model import ModelSpec
from sim.specs.slo import Slo, judged_by_request
from sim.workload.trace import Trace


class Target(NamedTuple):
    """One goal or several, of which the first decides, and the limits that a good candidate keeps."""

    goals: tuple[Goal, ...]
    slos: tuple[Slo, ...]

    @property
    def limits(self) -> tuple[Slo, ...]:
        """The limits on percentiles; under `goodput` they judge each request instead."""
        return () if any(goal.name == "goodput" for goal in self.goals) else self.slos

    def violation(self, metrics: Metrics) -> float:
        """How far the worst percentile is above its limit, as a share of the limit; 0 if all are kept.

        A percentile that unserved requests make infinite counts as that of the served requests, plus the share of unserved ones.
        """
        return max((excess(slo, metrics) + _unserved(slo, metrics) for slo in self.limits), default=0.0)

    def lateness(self, metrics: Metrics) -> float:
        """The violation without the share of unserved requests, which is the same for all candidates."""
        return max((excess(slo, metrics) for slo in self.limits), default=0.0)

    def rank(self, metrics: Metrics) -> tuple[float, ...]:
        """Sort key, smaller is better: the violation of limits, then the loss of each goal in order."""
        return (self.violation(metrics), *(goal.loss(metrics) for goal in self.goals))


def excess(slo: Slo, metrics: Metrics) -> float:
    """How far a percentile is above its limit, as a share of the limit; 0 if it is kept or nothing was measured.

    If unserved requests make it infinite, the percentile of the served requests counts.
    """
    value = metrics.get(slo.key if _unserved(slo, metrics) else slo.judged_key)
    return 0.0 if value is None else max(0.0, value / slo.limit_ms - 1.0)


def _unserved(slo: Slo, metrics: Metrics) -> float:
    """The share of requests that were not served if they make the percentile infinite, else 0."""
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
    """Places of the rows that no other row dominates (better in one loss, worse in none); of equal rows the first."""
    kept: list[int] = []
    for place in sorted(range(len(rows)), key=lambda index: (rows[index], index)):
        if not any(all(a <= b for a, b in zip(rows[other], rows[place], strict=True)) for other in kept):
            kept.append(place)
    return sorted(kept)


class Unservable(NamedTuple):
    """The number of requests that every configuration rejects, and the limits that no configuration can keep because of them."""

    num_requests: int
    num_arrived: int
    longest_prompt: int
    max_model_len: int
    broken: tuple[Slo, ...]

    def __str__(self) -> str:
        rejected = (
            f"{self.num_requests:,} of {self.num_arrived:,} requests {'is' if self.num_requests == 1 else 'are'} rejected by "
            f"every configuration: prompts of up to {self.longest_prompt:,} tokens, where the model's max_model_len is {self.max_model_len:,}"
        )
        if not self.broken:
            return f"{rejected}; each breaks every SLO, and they are too few to break a percentile that is limited."
        names = ", ".join(slo.name for slo in self.broken)
        return f"{rejected}; each breaks every SLO, so {names} cannot be kept: leave them out of the trace."

    def to_json(self) -> dict[str, Any]:
        facts = {
            name: getattr(self, name) for name in ("num_requests", "num_arrived", "longest_prompt", "max_model_len")
        }
        return facts | {"broken": [slo.name for slo in self.broken], "text": str(self)}


def unservable(trace: Trace, model: ModelSpec, limits: Sequence[Slo]) -> Unservable | None:
    """Requests whose prompts leave no room for a token in the model's context; None if there are none. Raises TraceError if all do."""
    count, arrived = int((trace.prompt_tokens >= model.max_model_len).sum()), len(trace)
    if not count:
        return None
    if count == arrived:
        raise TraceError(
            f"{trace.source or 'the trace'}: none of its {arrived:,} requests can be served: the shortest prompt has "
            f"{int(trace.prompt_tokens.min()):,} tokens, and max_model_len of {model.name} is {model.max_model_len:,}."
        )
    broken = tuple(slo for slo in limits if _breaks(slo, count, arrived))
    longest = int(trace.prompt_tokens.max())
    return Unservable(count, arrived, longest, model.max_model_len, broken)


def _breaks(slo: Slo, count: int, arrived: int) -> bool:
    """Whether `count` infinitely late requests of `arrived` make the percentile infinite, as numpy interpolates it."""
    return math.ceil(slo.percentile / 100 * (arrived - 1)) >= arrived - count
