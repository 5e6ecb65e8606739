"""Measured runs against their replay: signed errors by run, and how large they are by metric and kind of run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.errors import SimError
from sim.measure.replay import Figures, Replayed, replay
from sim.measure.runs import Run
from sim.specs.hardware import HardwareProfile
from sim.steptime.roofline import Composition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("ttft_mean", "tpot_mean", "e2el_mean", "e2el_p99", "output_throughput", "num_gpu_blocks")
GROUPINGS = ("gpu", "family", "workload", "quality")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted and measured figures of the whole run, or of one stage; latencies in ms."""

    predicted: Figures
    measured: Figures

    @property
    def errors(self) -> Figures:
        """Signed, in per cent of the measured, for what both have."""
        return {
            name: 100 * (self.predicted[name] / value - 1)
            for name, value in self.measured.items()
            if value and name in self.predicted
        }


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run: what came of its replay, or the reason why it could not be replayed."""

    run: Run
    family: str | None = None
    whole: Comparison | None = None
    stages: Mapping[int, Comparison] = field(default_factory=dict)
    reason: str | None = None

    def in_group(self, grouping: str) -> str:
        """Which GPU, model family, workload or quality it counts to."""
        values = {"gpu": self.run.gpu, "workload": self.run.workload.kind, "quality": self.run.quality}
        return self.family or "unknown" if grouping == "family" else values[grouping]

    def to_json(self) -> dict[str, Any]:
        facts = {"id": self.run.id, "gpu": self.run.gpu, "model": self.run.model, "quality": self.run.quality}
        if self.whole is None:
            return facts | {"reason": self.reason}
        return facts | _json(self.whole) | {"stages": {str(stage): _json(one) for stage, one in self.stages.items()}}


class Errors(NamedTuple):
    """How far a metric is off over a set of runs, in per cent."""

    n: int
    mape: float
    median_ape: float


@dataclass(frozen=True, slots=True)
class Validation:
    """All runs of a validation, in the order given."""

    results: tuple[RunResult, ...]

    @property
    def replayed(self) -> list[tuple[RunResult, Comparison]]:
        return [(result, result.whole) for result in self.results if result.whole is not None]

    @property
    def summary(self) -> dict[str, Errors]:
        """By metric, over all runs that were replayed."""
        return _summary(whole for _, whole in self.replayed)

    def summary_by(self, grouping: str) -> dict[str, dict[str, Errors]]:
        """The same for each GPU, model family, workload or quality."""
        groups: dict[str, list[Comparison]] = {}
        for result, whole in self.replayed:
            groups.setdefault(result.in_group(grouping), []).append(whole)
        return {name: _summary(groups[name]) for name in sorted(groups)}

    def worst(self, metric: str, count: int) -> list[tuple[RunResult, Comparison]]:
        """The runs whose error in a metric is largest."""
        known = [pair for pair in self.replayed if metric in pair[1].errors]
        return sorted(known, key=lambda pair: -abs(pair[1].errors[metric]))[:count]

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": [result.to_json() for result in self.results],
            "summary": _json_of(self.summary),
            "summary_by": {
                grouping: {name: _json_of(errors) for name, errors in self.summary_by(grouping).items()}
                for grouping in GROUPINGS
            },
        }

    def plot(self) -> "Figure":
        """A matplotlib Figure: measured against predicted latencies, a point a run."""
        from sim.report.validation import scatter_figure

        return scatter_figure(self.to_json())

    def _repr_html_(self) -> str:
        from sim.report.html import validation_html

        return validation_html(self.to_json())


def validate(
    runs: Sequence[Run],
    *,
    gpu: HardwareProfile | None = None,
    composition: Composition = "unified",
    seed: int = 0,
    progress: Progress | None = None,
) -> Validation:
    """Replay each run and compare; those that cannot be replayed are kept with their reason.

    `gpu` stands in for the profiles that runs name; `progress` is called with (done, all) runs.
    """

    def results() -> Iterator[RunResult]:
        for number, run in enumerate(runs):
            yield _compared(run, gpu, composition, seed)
            if progress:
                progress(number + 1, len(runs))

    return Validation(tuple(results()))


def _compared(run: Run, gpu: HardwareProfile | None, composition: Composition, seed: int) -> RunResult:
    try:
        replayed = replay(run, gpu=gpu, composition=composition, seed=seed)
    except SimError as error:
        return RunResult(run, reason=" ".join(str(error).split()))
    compared = {figures.stage: _comparison(run, replayed, figures.stage) for figures in run.measured}
    stages = {stage: one for stage, one in compared.items() if stage is not None}
    return RunResult(run, replayed.served.model.model_type, compared.get(None), stages)


def _comparison(run: Run, replayed: Replayed, stage: int | None) -> Comparison:
    measured = next(figures.figures for figures in run.measured if figures.stage == stage)
    predicted = replayed.figures[stage]
    if stage is None:
        predicted = predicted | {"num_gpu_blocks": float(replayed.served.plan.num_gpu_blocks)}
        measured = measured | dict(run.logged)
    return Comparison(predicted, dict(measured))


def _summary(comparisons: Iterable[Comparison]) -> dict[str, Errors]:
    errors: dict[str, list[float]] = {}
    for comparison in comparisons:
        for metric, error in comparison.errors.items():
            errors.setdefault(metric, []).append(abs(error))
    order = [metric for metric in METRICS if metric in errors] + sorted(set(errors) - set(METRICS))
    return {
        name: Errors(len(errors[name]), float(np.mean(errors[name])), float(np.median(errors[name]))) for name in order
    }


def _json(comparison: Comparison) -> dict[str, Figures]:
    return {"predicted": comparison.predicted, "measured": comparison.measured, "errors": comparison.errors}


def _json_of(summary: Mapping[str, Errors]) -> dict[str, dict[str, float]]:
    return {metric: errors._asdict() for metric, errors in summary.items()}
