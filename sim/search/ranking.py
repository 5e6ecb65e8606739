"""Compares candidates: their order, and which of them cannot be told apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sim.measure.differences import NOISE
from sim.metrics.goals import Metrics
from sim.search.blueprint import Params, canonical
from sim.search.evaluate import Outcome
from sim.search.objectives import Target, pareto


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with the outcome of its last replay, which was of `share` (0 to 1) of the trace."""

    params: Params
    num_flags: int
    num_gpus: int
    outcome: Outcome
    share: float

    @property
    def key(self) -> str:
        return canonical(self.params)

    @property
    def metrics(self) -> dict[str, Any]:
        return self.outcome.metrics


def ranked(candidates: Sequence[Candidate], target: Target) -> list[Candidate]:
    """Feasible candidates, best first; with several goals by Pareto fronts; equal ones by simplicity."""
    feasible = [candidate for candidate in candidates if candidate.outcome.is_feasible]
    ordered = sorted(feasible, key=lambda candidate: (target.rank(candidate.metrics), *simplicity(candidate)))
    return ordered if len(target.goals) == 1 else _by_fronts(ordered, target)


def different(ordered: Sequence[Candidate], target: Target) -> list[Candidate]:
    """The candidates without those that do exactly the same as one before them."""
    first = {target.rank(candidate.metrics): candidate for candidate in reversed(ordered)}
    return [candidate for candidate in ordered if first[target.rank(candidate.metrics)] is candidate]


def simplicity(candidate: Candidate) -> tuple[int, int, str]:
    """Sort key, simplest first: fewer GPUs, then fewer flags."""
    return candidate.num_gpus, candidate.num_flags, candidate.key


def front(candidates: Sequence[Candidate], target: Target) -> list[Candidate]:
    """The Pareto front over all goals of the candidates that are nearest to keeping all limits."""
    least = min((target.violation(candidate.metrics) for candidate in candidates), default=0.0)
    nearest = [candidate for candidate in candidates if target.violation(candidate.metrics) <= least]
    losses = [tuple(goal.loss(candidate.metrics) for goal in target.goals) for candidate in nearest]
    return [nearest[place] for place in pareto(losses)]


def _by_fronts(ordered: Sequence[Candidate], target: Target) -> list[Candidate]:
    remaining, result = list(ordered), []
    while remaining:
        best = front(remaining, target)
        kept = {candidate.key for candidate in best}
        result += best
        remaining = [candidate for candidate in remaining if candidate.key not in kept]
    return result


def decisive_loss(target: Target, leader: Metrics, metrics: Metrics) -> float:
    """The loss by which candidates are compared: that of the first goal; if even the leader breaks a limit, the worst
    percentile as a multiple of its limit.
    """
    return 1 + target.violation(metrics) if target.lateness(leader) > 0 else target.goals[0].loss(metrics)


def is_near(target: Target, leader: Metrics, metrics: Metrics, *, share: float = NOISE) -> bool:
    """Whether one replay gives no reason to prefer the leader: no worse limits, and a loss up to `share` above its own."""
    if target.lateness(leader) == 0 and target.violation(metrics) > target.violation(leader):
        return False
    best = decisive_loss(target, leader, leader)
    return relative(decisive_loss(target, leader, metrics), best) <= share


def beats(target: Target, outcome: Outcome, best: Outcome) -> bool:
    """Whether a replay shows that `outcome` is better than `best` by more than noise."""
    if not outcome.is_feasible or is_near(target, outcome.metrics, best.metrics):
        return False
    return target.rank(outcome.metrics) < target.rank(best.metrics)


def is_tied(leader: Sequence[float], other: Sequence[float], noise: float = NOISE) -> bool:
    """Whether paired losses, of replays that differ only in the candidate, do not show which candidate is better.

    That is so if their mean relative difference is at most `noise`, or at most two standard errors of the differences.
    """
    differences = [relative(loss, best) for best, loss in zip(leader, other, strict=True)]
    if not all(map(math.isfinite, differences)):
        return False
    mean = sum(differences) / len(differences)
    if mean <= noise:
        return True
    spread = math.sqrt(sum((value - mean) ** 2 for value in differences) / max(1, len(differences) - 1))
    return len(differences) > 1 and mean <= 2 * spread / math.sqrt(len(differences))


def relative(loss: float, base: float) -> float:
    """How far `loss` is above `base`, as a share of `base`; 0 if both are infinite."""
    if loss == base:
        return 0.0
    return (loss - base) / abs(base) if base and math.isfinite(base) else math.copysign(math.inf, loss - base)
