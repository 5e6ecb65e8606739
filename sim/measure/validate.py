"""Measured runs against their replay: signed errors by run, and how large they are by metric and kind of run."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.engine.records import Records
from sim.errors import SimError
from sim.measure.confidence import Confidence, confidence
from sim.measure.intervals import Intervals, ends, intervals
from sim.measure.likeness import Traits
from sim.measure.replay import Figures, Prepared, prepare
from sim.measure.runs import Run
from sim.specs.hardware import HardwareProfile
from sim.steptime.options import Composition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("ttft_mean", "tpot_mean", "e2el_mean", "e2el_p99", "output_throughput", "num_gpu_blocks")
GROUPINGS = ("gpu", "family", "workload", "quality")
Progress = Callable[[int, int], None]
Judge = Callable[[Run, Traits], Confidence]
ByStage = Mapping[int | None, Figures]


class Options(NamedTuple):
    """How runs are replayed."""

    gpu: HardwareProfile | None
    composition: Composition
    seed: int
    judge: Judge | None


def by_known_runs(_: Run, of: Traits) -> Confidence:
    """Judges a forecast by the measured runs that come with Servecast, which may include the run itself."""
    return confidence(of)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted and measured figures of the whole run, or of one stage; latencies in ms. `intervals` may be left out."""

    predicted: Figures
    measured: Figures
    intervals: Intervals = field(default_factory=dict)

    @property
    def errors(self) -> Figures:
        """Signed errors in per cent of the measured figure, for the figures that both have."""
        return {
            name: 100 * (self.predicted[name] / value - 1)
            for name, value in self.measured.items()
            if value and name in self.predicted
        }


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run: the errors of its replay, or the reason why it could not be replayed."""

    run: Run
    family: str | None = None
    whole: Comparison | None = None
    stages: Mapping[int, Comparison] = field(default_factory=dict)
    reason: str | None = None

    def in_group(self, grouping: str) -> str:
        """The GPU, model family, workload or quality by which it is grouped."""
        values = {"gpu": self.run.gpu, "workload": self.run.workload.kind, "quality": self.run.quality}
        return self.family or "unknown" if grouping == "family" else values[grouping]

    def to_json(self) -> dict[str, Any]:
        facts = {"id": self.run.id, "gpu": self.run.gpu, "model": self.run.model, "quality": self.run.quality}
        if self.whole is None:
            return facts | {"reason": self.reason}
        return facts | _json(self.whole) | {"stages": {str(stage): _json(one) for stage, one in self.stages.items()}}


class Errors(NamedTuple):
    """The error of a metric over a set of runs, in per cent."""

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
        """The runs with the largest error in a metric."""
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
    composition: Composition = "additive",
    seed: int = 0,
    judge: Judge | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Replay each run and compare; those that cannot be replayed are kept with their reason.

    `gpu` stands in for the profiles that runs name; `judge` gives the confidence in a forecast, None leaves intervals out;
    `progress` is called with (done, all) runs.
    """

    def results() -> Iterator[RunResult]:
        for number, run in enumerate(runs):
            yield _compared(run, Options(gpu, composition, seed, judge))
            if progress:
                progress(number + 1, len(runs))

    return Validation(tuple(results()))


def _compared(run: Run, options: Options) -> RunResult:
    try:
        prepared = prepare(run, gpu=options.gpu, composition=options.composition, seed=options.seed)
        records = prepared.records()
        figures = prepared.figures(records)
        around = _around(prepared, records, figures, options)
    except SimError as error:
        return RunResult(run, reason=" ".join(str(error).split()))
    compared = {stage: _comparison(prepared, figures, stage, around.get(stage, {})) for stage in figures}
    stages = {stage: one for stage, one in compared.items() if stage is not None}
    return RunResult(run, prepared.served.model.model_type, compared.get(None), stages)


def _around(prepared: Prepared, records: Records, figures: ByStage, options: Options) -> dict[int | None, Intervals]:
    """The intervals of each stage's figures; none without `judge`."""
    if options.judge is None:
        return {}
    bands = options.judge(prepared.run, prepared.traits(records)).bands
    low, high = (_with_blocks(prepared, prepared.figures(prepared.records(factor))) for factor in ends(bands))
    point = _with_blocks(prepared, figures)
    return {stage: intervals(point[stage], low[stage], high[stage], bands) for stage in figures}


def _with_blocks(prepared: Prepared, figures: ByStage) -> ByStage:
    """The whole run's figures with what was planned for it."""
    blocks = {"num_gpu_blocks": float(prepared.served.plan.num_gpu_blocks)}
    return {stage: one | blocks if stage is None else one for stage, one in figures.items()}


def _comparison(prepared: Prepared, figures: ByStage, stage: int | None, around: Intervals) -> Comparison:
    measured = next(figures.figures for figures in prepared.run.measured if figures.stage == stage)
    if stage is None:
        measured = measured | dict(prepared.run.logged)
    return Comparison(_with_blocks(prepared, figures)[stage], dict(measured), around)


def _summary(comparisons: Iterable[Comparison]) -> dict[str, Errors]:
    errors: dict[str, list[float]] = {}
    for comparison in comparisons:
        for metric, error in comparison.errors.items():
            errors.setdefault(metric, []).append(abs(error))
    order = [metric for metric in METRICS if metric in errors] + sorted(set(errors) - set(METRICS))
    return {
        name: Errors(len(errors[name]), float(np.mean(errors[name])), float(np.median(errors[name]))) for name in order
    }


def _json(comparison: Comparison) -> dict[str, Any]:
    figures = {"predicted": comparison.predicted, "measured": comparison.measured, "errors": comparison.errors}
    return figures | ({"intervals": comparison.intervals} if comparison.intervals else {})


def _json_of(summary: Mapping[str, Errors]) -> dict[str, dict[str, float]]:
    return {metric: errors._asdict() for metric, errors in summary.items()}
