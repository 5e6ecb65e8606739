"""How the winner reacts to each knob, the others held."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sim.search.evaluate import Outcome, Task
from sim.search.runner import Runner
from sim.search.slices import Slice, Split, representative
from sim.search.space import Params, Space

SHARE = 0.15


class Point(NamedTuple):
    """A value of a knob and what came of it."""

    value: Any
    outcome: Outcome


Sensitivity = Mapping[str, tuple[Point, ...]]


def sensitivity(winner: Params, space: Space, split: Split, runner: Runner, *, seed: int) -> Sensitivity:
    """For each knob its values in the order of the space, on one slice for all; values that conditions forbid are out."""
    part = representative(split.seen, SHARE, np.random.default_rng([seed, 3])) if len(split.seen) > 1 else Slice()
    varied = [
        (name, value)
        for name, values in space.knobs.items()
        for value in values
        if len(values) > 1 and space.allows({**winner, name: value})
    ]
    outcomes = runner.run([Task({**winner, name: value}, part) for name, value in varied], "varying knobs")
    points: dict[str, list[Point]] = {}
    for (name, value), outcome in zip(varied, outcomes, strict=True):
        points.setdefault(name, []).append(Point(value, outcome))
    return {name: tuple(found) for name, found in points.items()}
