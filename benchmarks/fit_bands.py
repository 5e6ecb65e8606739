"""Fits how far forecasts may be off to measured runs, and writes sim/measure/residuals.json, which confidence is drawn from.

    python -m benchmarks.fit_bands ../shared/measured

Each run whose engine arguments are known is replayed with step times as modelled and REFERENCE off both ways, which tells the
error of its step times from the time per token, and what of the times to first token and of the slowest requests it leaves.
The slowest hundredth of a run, or of a first stage, of a model with experts may be the requests that its server got while it
started; those have a band of their own, and for how long it starts is of STARTS_S what makes the errors likeliest.
A band is base x (1 + each x novelty): of the widenings tried, each with the base that covers a share of the runs when the
model that they ran is left out, the one whose bands are narrowest, by the mean of their logarithms. What kernels that were
never timed on a GPU add to it comes from benchmarks/short_profiles.py.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import copysign, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.short_profiles import kernel_errors
from sim.errors import SimError
from sim.measure.confidence import Band, Confidence, Evidence, Residual, confidence, meets_start
from sim.measure.likeness import Traits, novelty
from sim.measure.published import completed
from sim.measure.replay import Figures, Prepared, prepare
from sim.measure.runs import Run, read_runs
from sim.metrics.summary import arrived_s
from sim.specs.operator_fits import Basis

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "sim/measure/residuals.json"
FILES = ("serving.json", "closed_loop.json")
REFERENCE = 0.07  # a share: by how much steps are made longer, and shorter, to see what that does
QUEUES = (
    3.0  # a latency that grows so much faster than the step time tells of a queue, not of what is beyond step times
)
FITS: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "step": (91, (0.0, 0.1, 0.2, 0.3)),
    "ttft": (88, (0.0, 0.1, 0.2, 0.3)),
    "tail": (90, (0.0, 0.5, 1.0, 2.0)),
    "start": (85, (0.0,)),
    "blocks": (80, (0.0,)),
}
"""By error: the share of runs to lie within its band, in per cent, and the widenings tried. Figures that hang on several bands
come out near 90 % with these. Kernels compile as slowly where nothing else is new, so a start has no widening."""

STARTS_S = (5.0, 10.0, 15.0, 20.0, 30.0, 60.0)  # tried for how long a server of experts starts


class Slow(NamedTuple):
    """The signed error of a P99, as a logarithm, beyond that of the step times, and when a hundredth of its requests had arrived."""

    error: float
    arrived_s: float


class Known(NamedTuple):
    """A run with its errors, and the model that is left out together with it."""

    id: str
    model: str
    residual: Residual
    slow: tuple[Slow, ...]


class Point(NamedTuple):
    """The size of an error, and how new the run was to the others."""

    size: float
    novelty: float


class Fit(NamedTuple):
    """The band of each error, and for how many seconds a server of experts starts."""

    bands: dict[str, Band]
    start_s: float


def main(folder: Path) -> None:
    known = list(known_runs(measured(folder)))
    bands, start_s = fit(known)
    rows = [
        {
            "id": run.id,
            "model": run.model,
            "traits": _json(run.residual.traits),
            "errors": _rounded(run.residual.errors),
            "slow": [_rounded(slow._asdict()) for slow in run.slow],
        }
        for run in known
    ]
    about = f"by benchmarks/fit_bands.py to {len(known)} runs of {len({run.model for run in known})} models, each left out in turn"
    fits = {name: band._asdict() for name, band in bands.items()}
    file = {"fitted": about, "bands": fits, "kernels": unfitted_kernels(), "start_s": start_s, "runs": rows}
    OUTPUT.write_text(_text(file), encoding="utf-8")
    for name, band in bands.items():
        print(f"{name}: {band.base:.4f} x (1 + {band.each:g} x novelty)")
    print(f"servers of experts start for {start_s:g} s")
    print(f"wrote {OUTPUT.relative_to(ROOT)}, {about}")


def measured(folder: Path) -> list[Run]:
    """The runs whose engine arguments are known."""
    return [run for name in FILES for run in completed(read_runs(folder / name)) if run.engine_args_known]


def known_runs(runs: Sequence[Run]) -> Iterator[Known]:
    """Those that can be replayed and were measured as a whole, each with its errors."""
    for run in runs:
        try:
            prepared = prepare(run)
        except SimError:
            continue
        if any(figures.stage is None for figures in run.measured):
            model = prepared.served.model
            yield _known(f"{model.model_type} of {model.num_parameters / 1e9:.0f} G", prepared)


def _known(model: str, prepared: Prepared) -> Known:
    """Its errors, and that of its first stage's P99 if it has experts and further stages: they tell of the server's start."""
    run, records = prepared.run, prepared.records()
    point = prepared.figures(records)
    low, high = (prepared.figures(prepared.records(factor)) for factor in (1 - REFERENCE, 1 + REFERENCE))
    measured = {figures.stage: figures.figures for figures in run.measured}
    errors = dict(_errors(measured[None] | dict(run.logged), point[None], low[None], high[None], prepared))
    traits = prepared.traits(records)
    arrival_s, stage = records.requests.arrival_s, prepared.requests.stage
    slow = {None: arrival_s} | ({0: arrival_s[stage == 0]} if traits.has_experts and 1 in measured else {})
    found = [
        Slow(error, arrived_s(times, 1) or 0.0)
        for stage, times in slow.items()
        if (error := slow_error(measured[stage], point[stage], low[stage], high[stage])) is not None
    ]
    return Known(run.id, model, Residual(traits, errors), tuple(found))


def _errors(
    measured: Mapping[str, float], point: Figures, low: Figures, high: Figures, prepared: Prepared
) -> Iterator[tuple[str, float]]:
    """Signed, as logarithms; what cannot be told of a run is absent."""
    if "tpot_mean" in measured:
        yield "step", _step_error(measured, point, low, high)
    if "ttft_mean" in measured and _slope("ttft_mean", low, high) < QUEUES:
        error = log(measured["ttft_mean"] / point["ttft_mean"])
        explained = log((high if error > 0 else low)["ttft_mean"] / point["ttft_mean"])
        yield "ttft", copysign(sqrt(max(0.0, error**2 - explained**2)), error)
    if "num_gpu_blocks" in measured:
        yield "blocks", log(measured["num_gpu_blocks"] / prepared.served.plan.num_gpu_blocks)


def slow_error(measured: Mapping[str, float], point: Figures, low: Figures, high: Figures) -> float | None:
    """Of P99 E2EL, beyond what the run's own error in step times does to it; None where that cannot be told."""
    if "e2el_p99" not in measured or _slope("e2el_p99", low, high) >= QUEUES:
        return None
    step = _step_error(measured, point, low, high)
    end, reference = (high, 1 + REFERENCE) if step > 0 else (low, 1 - REFERENCE)
    explained = log(end["e2el_p99"] / point["e2el_p99"]) * step / log(reference)
    return log(measured["e2el_p99"] / point["e2el_p99"]) - explained


def _step_error(measured: Mapping[str, float], point: Figures, low: Figures, high: Figures) -> float:
    return log(measured["tpot_mean"] / point["tpot_mean"]) / _slope("tpot_mean", low, high)


def _slope(metric: str, low: Figures, high: Figures) -> float:
    """By how many per cent a figure grows when step times grow by one."""
    return log(high[metric] / low[metric]) / log((1 + REFERENCE) / (1 - REFERENCE))


def fit(known: Sequence[Known]) -> Fit:
    """The band of each error, with each run's novelty to those of other models."""
    models = {run.model for run in known}
    others = {model: [run.residual.traits for run in known if run.model != model] for model in models}
    degrees = {run.id: novelty(run.residual.traits, others[run.model]).degree for run in known}
    bands = {}
    for name in ("step", "ttft", "blocks"):
        points = [
            Point(abs(run.residual.errors[name]), degrees[run.id]) for run in known if name in run.residual.errors
        ]
        bands[name] = _narrowest(name, points)
    start_s = min(STARTS_S, key=lambda start_s: _unlikelihood(_slow_points(known, degrees, start_s).values()))
    slow = {name: _narrowest(name, points) for name, points in _slow_points(known, degrees, start_s).items()}
    return Fit(bands | slow, start_s)


def _slow_points(known: Sequence[Known], degrees: Mapping[str, float], start_s: float) -> dict[str, list[Point]]:
    """Those of requests that may meet a start and those of all others; what is not simulated delays requests, it makes none faster."""
    points: dict[str, list[Point]] = {"tail": [], "start": []}
    for run in known:
        for slow in run.slow:
            name = "start" if meets_start(run.residual.traits, slow.arrived_s, start_s) else "tail"
            points[name].append(Point(max(0.0, slow.error), degrees[run.id]))
    return {name: found for name, found in points.items() if found}


def _unlikelihood(parts: Iterable[Sequence[Point]]) -> float:
    """Grows as errors are less likely, taken as exponential with the mean of their part."""
    return sum(len(points) * log(np.mean([point.size for point in points])) for points in parts)


def _narrowest(name: str, points: Sequence[Point]) -> Band:
    covered, widenings = FITS[name]
    bands = [_covering(points, each, covered) for each in widenings]
    return min(bands, key=lambda band: float(np.mean(np.log([band.at(point.novelty) for point in points]))))


def _covering(points: Sequence[Point], each: float, covered: int) -> Band:
    base = float(np.percentile([size / (1 + each * novelty) for size, novelty in points], covered))
    return Band(round(base, 4), each)


def unfitted_kernels() -> dict[Basis, float]:
    """The band that steps have besides, by where their kernels come from: it covers as many of them as that of step times."""
    covered, _ = FITS["step"]
    return kernel_errors(covered)


def left_out(known: Sequence[Known]) -> Callable[[Run, Traits], Confidence]:
    """How sure a forecast of each run is where no run of its model is known."""
    (bands, start_s), kernels = fit(known), unfitted_kernels()
    model_of = {run.id: run.model for run in known}

    def judge(run: Run, of: Traits) -> Confidence:
        others = tuple(other.residual for other in known if other.model != model_of[run.id])
        return confidence(of, Evidence(others, bands, kernels, start_s))

    return judge


def _json(of: Traits) -> dict[str, Any]:
    """The facts that are not as they would be if nothing was said."""
    defaults = Traits._field_defaults
    facts = {name: value for name, value in of._asdict().items() if name not in defaults or value != defaults[name]}
    assert of.regime, "a run that was replayed has a regime"
    rounded = {
        name: value if isinstance(value, bool) else round(value, 1)
        for name, value in of.regime._asdict().items()
        if value is not None
    }
    return facts | {"regime": rounded}


def _rounded(errors: Mapping[str, float]) -> dict[str, float]:
    return {name: round(error, 4) for name, error in errors.items()}


def _text(file: Mapping[str, Any]) -> str:
    """A line a run."""
    head = json.dumps({name: value for name, value in file.items() if name != "runs"}, indent=1)[:-2]
    return head + ',\n "runs": [\n' + ",\n".join(json.dumps(row) for row in file["runs"]) + "\n]}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
