"""How the winner reacts to each knob, the others held."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.search.evaluate import Outcome, Task
from sim.search.objectives import Target
from sim.search.ranking import beats
from sim.search.runner import Runner
from sim.search.slices import WHOLE, Slice, Split, representative
from sim.search.space import Params, Space

SHARE = 0.15


class Point(NamedTuple):
    """A value of a knob and what came of it on a share of the trace."""

    value: Any
    outcome: Outcome
    share: float


Sensitivity = Mapping[str, tuple[Point, ...]]


def first_look(split: Split, seed: int) -> Slice:
    """The slice on which the winner's neighbours are looked at first."""
    return representative(split.seen, SHARE, np.random.default_rng([seed, 3])) if len(split.seen) > 1 else WHOLE


def sensitivity(winner: Params, space: Space, part: Slice, runner: Runner) -> Sensitivity:
    """For each knob its values in the order of the space, on one slice for all; values that conditions forbid are out."""
    return _varied(winner, space, [name for name, values in space.knobs.items() if len(values) > 1], part, runner)


def settled(found: Sensitivity, winner: Params, space: Space, target: Target, runner: Runner) -> Sensitivity:
    """Knobs of which a value beats the winner on the slice, on the whole trace instead: there its score is from."""

    def is_doubted(name: str) -> bool:
        own = own_outcome(found[name], winner[name])
        return any(beats(target, point.outcome, own) for point in found[name])

    doubted = [name for name in found if is_doubted(name)]
    return {**found, **_varied(winner, space, doubted, WHOLE, runner)}


def own_outcome(points: tuple[Point, ...], winning: Any) -> Outcome:
    """What came of the winner's own value."""
    return next(point.outcome for point in points if point.value == winning)


def _varied(winner: Params, space: Space, names: list[str], part: Slice, runner: Runner) -> Sensitivity:
    varied = [(name, value) for name in names for value in space.knobs[name] if space.allows({**winner, name: value})]
    outcomes = runner.run([Task({**winner, name: value}, part) for name, value in varied], "varying knobs")
    points: dict[str, list[Point]] = {}
    for (name, value), outcome in zip(varied, outcomes, strict=True):
        points.setdefault(name, []).append(Point(value, outcome, SHARE if part.windows else 1.0))
    return {name: tuple(found) for name, found in points.items()}
