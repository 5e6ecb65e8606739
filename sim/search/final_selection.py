"""The final selection: replays the best few on more slices and with perturbed step times, finds ties, and accepts a winner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from sim.measure.differences import NOISE
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.ranking import (
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
SIMPLEST = 2  # contenders chosen because they need few flags
NUM_SLICES = 4
SLICE_SHARE = 0.2
ACCEPTED_LOSS = 0.03  # how far a winner may be behind another contender on the whole trace


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate of the final selection, with its replays of the whole trace and of the held-out windows.

    `robustness` is the share (0 to 1) of the re-scoring replays that kept all limits; `forecast` has the confidence in its
    figures on the whole trace, under the keys of the answers.
    """

    candidate: Candidate
    whole: Outcome
    held_out: Outcome
    robustness: float
    is_tied: bool
    forecast: Mapping[str, Any] = field(default_factory=dict)


class Verdict(NamedTuple):
    """The finalists: the winner, those tied with it, simplest first, then the rest, best first.

    `band` is the share by which step times may be off, so that closer candidates cannot be told apart; None if step times
    were given by the user.
    """

    finalists: tuple[Finalist, ...]
    band: float | None

    @property
    def winner(self) -> Finalist:
        return self.finalists[0]

    @property
    def tied(self) -> tuple[Finalist, ...]:
        """The finalists tied with the winner; empty if the whole trace confirmed none of those that were tied."""
        return tuple(finalist for finalist in self.finalists[1:] if finalist.is_tied and self.winner.is_tied)


def judge(
    scenario: Scenario, candidates: Sequence[Candidate], split: Split, runner: Runner, *, seed: int
) -> Verdict | None:
    """The verdict on the candidates that were replayed in full; None if none of them is feasible."""
    in_full = [candidate for candidate in candidates if candidate.share == 1.0]
    contenders = _contenders(scenario, in_full)
    if not contenders:
        return None
    band = _band(scenario, contenders)
    replays = _rescored(contenders, split, runner, perturbations(step_times_off(band)), seed=seed)
    finalists = _finalists(scenario, contenders, replays, split, runner)
    return Verdict(_accepted_first(scenario, finalists), band)


def with_forecasts(scenario: Scenario, verdict: Verdict, runner: Runner, *, intervals: bool) -> Verdict:
    """The verdict with the confidence in each finalist's figures; `intervals` costs two more replays of each."""
    wholes = [(one.candidate.params, one.whole.metrics) for one in verdict.finalists]
    found = forecasts(scenario, wholes, runner, intervals=intervals)
    finalists = tuple(replace(one, forecast=how) for one, how in zip(verdict.finalists, found, strict=True))
    return verdict._replace(finalists=finalists)


def _contenders(scenario: Scenario, in_full: Sequence[Candidate]) -> list[Candidate]:
    """The leader, the SIMPLEST within noise of it, and the best of the rest; no two that do exactly the same."""
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
    """For each contender its further replays: on other seen slices, and with step times that are off."""
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
    """The finalists: first the leader and those that cannot be told apart from it, simplest first."""
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
    """For each contender whether it is tied with the first, by all its replays; the last replay is that of the whole trace.

    Step times may be off by the band, which hides a difference only as far as it moves the score. Scores that differ by
    more than ACCEPTED_LOSS on the whole trace are never tied, however much the replays scatter.
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
    """The largest relative change of the loss when step times are off. Replays: in full, of slices as modelled, then perturbed."""
    pairs = zip(losses[1 : 1 + NUM_SLICES], losses[1 + NUM_SLICES : 1 + 2 * NUM_SLICES], strict=True)
    return max((abs(relative(off, modelled)) for modelled, off in pairs), default=0.0)


def _robustness(scenario: Scenario, outcomes: Sequence[Outcome]) -> float:
    kept = [scenario.target.violation(outcome.metrics) == 0 for outcome in outcomes]
    return sum(kept) / len(kept)


def _accepted_first(scenario: Scenario, finalists: Sequence[Finalist]) -> tuple[Finalist, ...]:
    """Put the first tied finalist at the front that the whole trace confirms; the order of the others stays."""
    target = scenario.target
    best = min((finalist.whole.metrics for finalist in finalists), key=target.rank)
    winner = next(one for one in finalists if is_near(target, best, one.whole.metrics, share=ACCEPTED_LOSS))
    return (winner, *(finalist for finalist in finalists if finalist is not winner))
