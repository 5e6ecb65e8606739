"""The last word: the best few again over slices and perturbed step times, who is tied, and who is accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.ranking import (
    NOISE,
    Candidate,
    decisive_loss,
    different,
    is_near,
    is_tied,
    ranked,
    relative,
    simplicity,
)
from sim.search.runner import Runner
from sim.search.slices import WHOLE, Slice, Split, representative
from sim.search.uncertainty import forecast_band, forecasts, perturbations, step_times_off
from sim.steptime.perturbed import AS_MODELLED, Perturbation

CONTENDERS = 5
SIMPLEST = 2  # of them, in for needing few flags
NUM_SLICES = 4
SLICE_SHARE = 0.2
ACCEPTED_LOSS = 0.03  # how far a winner may be behind another contender on the whole trace


@dataclass(frozen=True, slots=True)
class Finalist:
    """A contender with its replay on the whole trace and on the part that the search has not seen.

    `robustness` is the share of the re-scoring replays in which all limits were kept; `forecast` is how sure its figures on
    the whole trace are, as answers carry it.
    """

    candidate: Candidate
    whole: Outcome
    held_out: Outcome
    robustness: float
    is_tied: bool
    forecast: Mapping[str, Any] = field(default_factory=dict)


class Verdict(NamedTuple):
    """Finalists, the winner first, then those tied with it, simplest first, then the rest in order.

    `band` is the share inside which the forecast does not tell them apart, None where step times are given.
    """

    finalists: tuple[Finalist, ...]
    band: float | None

    @property
    def winner(self) -> Finalist:
        return self.finalists[0]

    @property
    def tied(self) -> tuple[Finalist, ...]:
        """None where the whole trace spoke against all that were level."""
        return tuple(finalist for finalist in self.finalists[1:] if finalist.is_tied and self.winner.is_tied)


def judge(
    scenario: Scenario, candidates: Sequence[Candidate], split: Split, runner: Runner, *, seed: int
) -> Verdict | None:
    """The verdict on the candidates that were replayed in full; None where none is feasible."""
    in_full = [candidate for candidate in candidates if candidate.share == 1.0]
    contenders = _contenders(scenario, in_full)
    if not contenders:
        return None
    band = _band(scenario, contenders)
    replays = _rescored(contenders, split, runner, perturbations(step_times_off(band)), seed=seed)
    finalists = _finalists(scenario, contenders, replays, split, runner)
    return Verdict(_accepted_first(scenario, finalists), band)


def with_forecasts(scenario: Scenario, verdict: Verdict, runner: Runner, *, intervals: bool) -> Verdict:
    """The verdict with how sure each finalist's figures are; `intervals` costs two more replays of each."""
    wholes = [(one.candidate.params, one.whole.metrics) for one in verdict.finalists]
    found = forecasts(scenario, wholes, runner, intervals=intervals)
    finalists = tuple(replace(one, forecast=how) for one, how in zip(verdict.finalists, found, strict=True))
    return verdict._replace(finalists=finalists)


def _contenders(scenario: Scenario, in_full: Sequence[Candidate]) -> list[Candidate]:
    """The leader, the simplest of those within noise of it, and the best of the rest, none doing exactly what another does."""
    target = scenario.target
    order = different(ranked(in_full, target), target)
    level = [one for one in order[1:] if is_near(target, order[0].metrics, one.metrics)]
    chosen = [*order[:1], *sorted(level, key=simplicity)[:SIMPLEST]]
    rest = [one for one in order if one not in chosen]
    chosen += rest[: CONTENDERS - len(chosen)]
    return sorted(chosen, key=order.index)


def _band(scenario: Scenario, contenders: Sequence[Candidate]) -> float | None:
    return forecast_band(scenario, contenders)


def _rescored(
    contenders: Sequence[Candidate], split: Split, runner: Runner, off_by: Sequence[Perturbation], *, seed: int
) -> list[list[Outcome]]:
    """For each contender its replays: on other slices of what may be seen, and with step times that are off."""
    rng = np.random.default_rng([seed, 2])
    parts = [representative(split.seen, SLICE_SHARE, rng) for _ in range(NUM_SLICES)]
    variants = [(part, AS_MODELLED) for part in parts]
    variants += [(part, perturbation) for part, perturbation in zip(parts, off_by, strict=True)]
    tasks = [Task(contender.params, part, off) for contender in contenders for part, off in variants]
    outcomes = iter(runner.run(tasks, "re-scoring"))
    return [[next(outcomes) for _ in variants] for _ in contenders]


def _finalists(
    scenario: Scenario,
    contenders: Sequence[Candidate],
    replays: Sequence[Sequence[Outcome]],
    split: Split,
    runner: Runner,
) -> list[Finalist]:
    """The leader and those that cannot be told from it come first, simplest first."""
    wholes = runner.run([Task(one.params, WHOLE, explains=True) for one in contenders], "verifying")
    held_out = runner.run([Task(one.params, Slice(split.held_out)) for one in contenders], "verifying")
    tied = _tied(scenario, contenders, [[*rest, *ends] for *ends, rest in zip(held_out, wholes, replays, strict=True)])
    finalists = [
        Finalist(contender, whole, unseen, _robustness(scenario, outcomes), is_tied)
        for contender, whole, unseen, outcomes, is_tied in zip(contenders, wholes, held_out, replays, tied, strict=True)
    ]
    equals = [finalist for finalist in finalists if finalist.is_tied]
    equals.sort(key=lambda finalist: simplicity(finalist.candidate))
    return equals + [finalist for finalist in finalists if not finalist.is_tied]


def _tied(scenario: Scenario, contenders: Sequence[Candidate], replays: Sequence[Sequence[Outcome]]) -> list[bool]:
    """Whether each is level with the first, over its replay in full and all others, the last that of the whole trace.

    The forecast may be off by the band; that hides a difference only as far as it moves the score. Whatever the replays
    scatter, scores further apart on the whole trace than an accepted loss are different.
    """
    target, leader = scenario.target, contenders[0].metrics
    band = _band(scenario, contenders) or 0.0

    def losses_of(contender: Candidate, outcomes: Sequence[Outcome]) -> list[float]:
        return [decisive_loss(target, leader, outcome.metrics) for outcome in (contender.outcome, *outcomes)]

    def is_level(contender: Candidate, outcomes: Sequence[Outcome]) -> bool:
        losses = losses_of(contender, outcomes)
        noise = max(NOISE, min(band, max(_reaction(best), _reaction(losses))))
        apart = abs(relative(score(outcomes[-1].metrics), score(replays[0][-1].metrics)))
        is_late = target.lateness(leader) == 0 and target.lateness(contender.metrics) > 0
        return is_tied(best, losses, noise) and apart <= max(ACCEPTED_LOSS, noise) and not is_late

    best, score = losses_of(contenders[0], replays[0]), target.goals[0].loss
    return [is_level(contender, outcomes) for contender, outcomes in zip(contenders, replays, strict=True)]


def _reaction(losses: Sequence[float]) -> float:
    """By what share the loss moves at most when step times are off: after the first, slices as modelled and then so."""
    pairs = zip(losses[1 : 1 + NUM_SLICES], losses[1 + NUM_SLICES : 1 + 2 * NUM_SLICES], strict=True)
    return max((abs(relative(off, modelled)) for modelled, off in pairs), default=0.0)


def _robustness(scenario: Scenario, outcomes: Sequence[Outcome]) -> float:
    kept = [scenario.target.violation(outcome.metrics) == 0 for outcome in outcomes]
    return sum(kept) / len(kept)


def _accepted_first(scenario: Scenario, finalists: Sequence[Finalist]) -> tuple[Finalist, ...]:
    """The first that the whole trace does not speak against wins; the order is not changed otherwise."""
    target = scenario.target
    best = min((finalist.whole.metrics for finalist in finalists), key=target.rank)
    winner = next(one for one in finalists if is_near(target, best, one.whole.metrics, share=ACCEPTED_LOSS))
    return (winner, *(finalist for finalist in finalists if finalist is not winner))
