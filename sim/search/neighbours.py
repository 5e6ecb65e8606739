"""Neighbours of the best candidate: without one of its flags, or with another value of one knob.

First, flags that make no difference are removed from the leader. Then its neighbours are replayed, and while one of them beats
the winner, the search goes on from there.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.search.blueprint import Params, canonical
from sim.search.evaluate import Outcome, Task
from sim.search.fidelity import FINALISTS, Round, Search
from sim.search.final_selection import Verdict, judge
from sim.search.objectives import Target
from sim.search.ranking import Candidate, beats, is_near, ranked
from sim.search.runner import Runner
from sim.search.slices import WHOLE, Slice, Split, representative
from sim.search.space import Space
from sim.search.strategies import around

SHARE = 0.15


class Point(NamedTuple):
    """A value of a knob, and the outcome with it on a share of the trace."""

    value: Any
    outcome: Outcome
    share: float


Sensitivity = Mapping[str, tuple[Point, ...]]


def simplified(search: Search, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, and the leader without each of its flags and without all flags that do not matter, replayed in full."""
    in_full = [candidate for candidate in candidates if candidate.share == 1.0]
    order = ranked(in_full, search.scenario.target)
    if not order:
        return candidates
    leader, known = order[0], {candidate.key for candidate in in_full}
    tried = _without_one(search, leader)

    def is_spare(candidate: Candidate) -> bool:
        is_feasible = candidate.outcome.is_feasible
        return is_feasible and is_near(search.scenario.target, leader.metrics, candidate.metrics)

    spare = {name: None for name, candidate in tried.items() if is_spare(candidate)}
    tried_all = _replay(search, {"all": {**leader.params, **spare}}) if len(spare) > 1 else {}
    new = {candidate.key: candidate for candidate in (*tried.values(), *tried_all.values())}
    return _merged(candidates, [candidate for key, candidate in new.items() if key not in known])


def _without_one(search: Search, leader: Candidate) -> dict[str, Candidate]:
    """By flag: the leader with that knob left to vLLM, if the space allows that."""
    flags = [name for name, value in leader.params.items() if value is not None and None in search.space.knobs[name]]
    return _replay(search, {name: {**leader.params, name: None} for name in flags})


def _replay(search: Search, params: Mapping[str, Params]) -> dict[str, Candidate]:
    """Replay the named candidates that the space allows; by name."""
    stage = Round("simplifying", Slice(search.split.seen), 1.0)
    allowed = {name: one for name, one in params.items() if search.space.allows(one)}
    return dict(zip(allowed, search.replay(list(allowed.values()), stage), strict=True))


def _first_look(split: Split, seed: int) -> Slice:
    """The slice on which the winner's neighbours are replayed first."""
    return representative(split.seen, SHARE, np.random.default_rng([seed, 3])) if len(split.seen) > 1 else WHOLE


def sensitivity(winner: Params, space: Space, part: Slice, runner: Runner) -> Sensitivity:
    """For each knob the outcomes of its values, all on the same slice, in the order of the space; without forbidden values."""
    return _varied(winner, space, [name for name, values in space.knobs.items() if len(values) > 1], part, runner)


def settled(found: Sensitivity, winner: Params, space: Space, target: Target, runner: Runner) -> Sensitivity:
    """`found`, with knobs replayed on the whole trace, where the winner's score is from, if a value beats the winner on the slice."""

    def is_doubted(name: str) -> bool:
        own = _own_outcome(found[name], winner[name])
        return any(beats(target, point.outcome, own) for point in found[name])

    doubted = [name for name in found if is_doubted(name)]
    return {**found, **_varied(winner, space, doubted, WHOLE, runner)}


def _own_outcome(points: tuple[Point, ...], winning: Any) -> Outcome:
    """The outcome of the winner's own value."""
    return next(point.outcome for point in points if point.value == winning)


def _varied(winner: Params, space: Space, names: list[str], part: Slice, runner: Runner) -> Sensitivity:
    varied = [(name, value) for name in names for value in space.knobs[name] if space.allows({**winner, name: value})]
    outcomes = runner.run([Task({**winner, name: value}, part) for name, value in varied], "varying knobs")
    points: dict[str, list[Point]] = {}
    for (name, value), outcome in zip(varied, outcomes, strict=True):
        points.setdefault(name, []).append(Point(value, outcome, SHARE if part.windows else 1.0))
    return {name: tuple(found) for name, found in points.items()}


def refined(
    search: Search, candidates: Sequence[Candidate], verdict: Verdict, *, feeds_back: bool = True
) -> tuple[list[Candidate], Verdict, Sensitivity]:
    """Search on among the winner's neighbours: all candidates, the last verdict, and how its winner reacts to each knob."""
    found, part = list(candidates), _first_look(search.split, search.seed)
    while True:
        winner = verdict.winner.candidate
        reactions = sensitivity(winner.params, search.space, part, search.runner)
        challengers = _challengers(search, found, winner.params, reactions, part) if feeds_back else []
        replayed = search.replay(challengers, Round("neighbours", Slice(search.split.seen), 1.0))
        found = _merged(found, replayed)
        again = verdict
        if any(beats(search.scenario.target, one.outcome, winner.outcome) for one in replayed):
            again = judge(search.scenario, found, search.split, search.runner, seed=search.seed) or verdict
        if again.winner.candidate.key == winner.key:
            return found, again, settled(reactions, winner.params, search.space, search.scenario.target, search.runner)
        verdict = again


def _challengers(
    search: Search, found: Sequence[Candidate], winner: Params, reactions: Sensitivity, part: Slice
) -> list[Params]:
    """Neighbours not yet replayed in full: those that beat the winner on the slice, and its best layouts there."""
    known = {candidate.key for candidate in found if candidate.share == 1.0}
    neighbours = (*_better(winner, reactions, search.scenario.target), *_best_layouts(search, winner, part))
    return list({key: params for params in neighbours if (key := canonical(params)) not in known}.values())


def _better(winner: Params, reactions: Sensitivity, target: Target) -> Iterator[Params]:
    for name, points in reactions.items():
        own = _own_outcome(points, winner[name])
        yield from ({**winner, name: point.value} for point in points if beats(target, point.outcome, own))


def _best_layouts(search: Search, winner: Params, part: Slice) -> list[Params]:
    laid_out = search.replay(around(winner, search.space), Round("neighbours", part, SHARE))
    return [candidate.params for candidate in ranked(laid_out, search.scenario.target)[:FINALISTS]]


def _merged(found: Sequence[Candidate], new: Sequence[Candidate]) -> list[Candidate]:
    keys = {candidate.key for candidate in new}
    return [*(candidate for candidate in found if candidate.key not in keys), *new]
