"""How unevenly tokens choose experts: `python -m benchmarks.fit_routing ../shared/measured`.

Experts are taken to be popular by rank to the minus an exponent: of tenths from even choice (0) to Zipf's law (1), the one that makes times per token
likeliest, by soft-L1 on their log errors. Prompts of text again and again tell of `skewed`: served runs of models with experts, which fit_serving.py leaves
out of its steps. Random tokens tell of `mild`: closed loops of such models whose publisher has a script (sim/measure/published.py). Each model is left out in turn as
well, and times to first token are not used. `sim/steptime/expert_routing.py` holds both.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fit_launches import soft_l1
from benchmarks.fit_serving import dense_of, fit_steps, log_errors, points_of
from sim.engine.records import Floats
from sim.measure.published import completed, scripted
from sim.measure.replay import serve
from sim.measure.runs import read_runs
from sim.measure.validate import RunResult, validate
from sim.report.tables import aligned
from sim.steptime import busiest_rank
from sim.steptime.expert_routing import EXPONENTS, ExpertRouting

TENTHS = tuple(tenth / 10 for tenth in range(11))
HEADER = ("left out", "times", "exponent by the others", "median error %", "evenly", "by Zipf's law")


class Told(NamedTuple):
    """Times per token that tell of a routing: whose each is, and their log errors with the exponent that it has."""

    routing: ExpertRouting
    models: Sequence[str]
    log_errors: Callable[[], Floats]


def served(folder: Path) -> Told:
    """Stages of served runs."""
    points = points_of(folder / "serving.json")
    theta = fit_steps(dense_of(points))
    told = [point for point in points if point.served.model.has_experts]
    return Told("skewed", [point.run.model for point in told], lambda: log_errors(told, theta))


def loops(folder: Path) -> Told:
    """Closed loops that start."""
    runs = completed([run for run in read_runs(folder / "closed_loop.json") if scripted(run)])
    told = [one.run for one in validate(runs).results if one.whole and serve(one.run).model.has_experts]
    return Told("mild", [run.model for run in told], lambda: np.array([*map(_log_error, validate(told).results)]))


def _log_error(one: RunResult) -> float:
    assert one.whole, "what was replayed with one exponent is with all"
    return float(np.log1p(one.whole.errors["tpot_mean"] / 100))


def rows(told: Told) -> Iterator[tuple[object, ...]]:
    """With no model left out first."""
    errors = np.array([_with(told, tenth) for tenth in TENTHS])
    models = np.array(told.models)
    yield _row("nothing", np.full(len(models), fill_value=False), errors)
    for model in np.unique(models):
        yield _row(str(model).split("/")[-1], models == model, errors)


def _with(told: Told, exponent: float) -> Floats:
    kept = EXPONENTS[told.routing]
    try:
        _choose(told.routing, exponent)
        return told.log_errors()
    finally:
        _choose(told.routing, kept)


def _choose(routing: ExpertRouting, exponent: float) -> None:
    EXPONENTS[routing] = exponent
    for loads in (busiest_rank._load, busiest_rank._placed):  # noqa: SLF001 - told apart by name
        loads.cache_clear()


def _row(name: str, unseen: "np.ndarray[tuple[int], np.dtype[np.bool_]]", errors: Floats) -> tuple[object, ...]:
    best = int(np.argmin([soft_l1(of[~unseen]) for of in errors]))
    scored = unseen if unseen.any() else ~unseen
    sizes = np.median(100 * np.abs(np.expm1(errors[:, scored])), axis=1)
    return name, int(scored.sum()), TENTHS[best], *(f"{sizes[of]:.1f}" for of in (best, 0, -1))


if __name__ == "__main__":
    for told in (served(Path(sys.argv[1])), loops(Path(sys.argv[1]))):
        print(told.routing)
        print(aligned(HEADER, rows(told)))
