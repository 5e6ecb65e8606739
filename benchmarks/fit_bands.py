"""Fits how far forecasts may be off to measured runs, and writes sim/measure/residuals.json, which confidence is drawn from.

    python -m benchmarks.fit_bands ../shared/measured

Each run whose engine arguments are known is replayed with step times as modelled and REFERENCE off both ways, which tells the
error of its step times from the time per token, and what of the times to first token and of the slowest requests it leaves.
A band is base x (1 + each x novelty): of the widenings tried, each with the base that covers a share of the runs when the
model that they ran is left out, the one whose bands are narrowest, by the mean of their logarithms. What kernels that were
never timed on a GPU add to it comes from benchmarks/short_profiles.py.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import copysign, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.short_profiles import kernel_errors
from sim.errors import SimError
from sim.measure.confidence import Band, Confidence, Evidence, Residual, confidence
from sim.measure.likeness import Traits, novelty
from sim.measure.replay import Figures, Prepared, prepare
from sim.measure.runs import Run, read_runs
from sim.specs.operator_fits import Basis

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "sim/measure/residuals.json"
FILES = ("serving.json", "closed_loop.json")
REFERENCE = 0.07  # a share: by how much steps are made longer, and shorter, to see what that does
QUEUES = (
    3.0  # a latency that grows so much faster than the step time tells of a queue, not of what is beyond step times
)
FITS: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "step": (87, (0.0, 0.1, 0.2, 0.3)),
    "ttft": (86, (0.0, 0.1, 0.2, 0.3)),
    "tail": (90, (0.5, 1.0, 2.0)),
    "blocks": (80, (0.0,)),
}
"""By error: the share of runs to lie within its band, in per cent, and the widenings tried. Figures that hang on several bands
come out near 90 % with these; slow requests are rare and so have to be covered by what is new about a run, not by all bands."""

UPWARDS = frozenset({"tail"})  # what is not simulated delays the slowest requests; it makes none faster


class Known(NamedTuple):
    """A run with its errors, and the model that is left out together with it."""

    id: str
    model: str
    residual: Residual


def main(folder: Path) -> None:
    known = list(known_runs(measured(folder)))
    bands = fit(known)
    rows = [
        {
            "id": run.id,
            "model": run.model,
            "traits": _json(run.residual.traits),
            "errors": _rounded(run.residual.errors),
        }
        for run in known
    ]
    about = f"by benchmarks/fit_bands.py to {len(known)} runs of {len({run.model for run in known})} models, each left out in turn"
    fits = {name: band._asdict() for name, band in bands.items()}
    file = {"fitted": about, "bands": fits, "kernels": unfitted_kernels(), "runs": rows}
    OUTPUT.write_text(_text(file), encoding="utf-8")
    for name, band in bands.items():
        print(f"{name}: {band.base:.4f} x (1 + {band.each:g} x novelty)")
    print(f"wrote {OUTPUT.relative_to(ROOT)}, {about}")


def measured(folder: Path) -> list[Run]:
    """The runs whose engine arguments are known."""
    return [run for name in FILES for run in read_runs(folder / name) if run.engine_args_known]


def known_runs(runs: Sequence[Run]) -> Iterator[Known]:
    """Those that can be replayed and were measured as a whole, each with its errors."""
    for run in runs:
        try:
            prepared = prepare(run)
        except SimError:
            continue
        if any(figures.stage is None for figures in run.measured):
            residual = _residual(run, prepared)
            model = prepared.served.model
            yield Known(run.id, f"{model.model_type} of {model.num_parameters / 1e9:.0f} G", residual)


def _residual(run: Run, prepared: Prepared) -> Residual:
    records = prepared.records()
    point = prepared.figures(records)[None]
    low, high = (prepared.figures(prepared.records(factor))[None] for factor in (1 - REFERENCE, 1 + REFERENCE))
    figures = next(figures.figures for figures in run.measured if figures.stage is None)
    return Residual(prepared.traits(records), dict(_errors(figures | dict(run.logged), point, low, high, prepared)))


def _errors(
    measured: Mapping[str, float], point: Figures, low: Figures, high: Figures, prepared: Prepared
) -> Iterator[tuple[str, float]]:
    """Signed, as logarithms; what cannot be told of a run is absent."""
    if "tpot_mean" in measured:
        yield "step", log(measured["tpot_mean"] / point["tpot_mean"]) / _slope("tpot_mean", low, high)
    for name, metric in (("ttft", "ttft_mean"), ("tail", "e2el_p99")):
        if metric in measured and _slope(metric, low, high) < QUEUES:
            error = log(measured[metric] / point[metric])
            explained = log((high if error > 0 else low)[metric] / point[metric])
            yield name, copysign(sqrt(max(0.0, error**2 - explained**2)), error)
    if "num_gpu_blocks" in measured:
        yield "blocks", log(measured["num_gpu_blocks"] / prepared.served.plan.num_gpu_blocks)


def _slope(metric: str, low: Figures, high: Figures) -> float:
    """By how many per cent a figure grows when step times grow by one."""
    return log(high[metric] / low[metric]) / log((1 + REFERENCE) / (1 - REFERENCE))


def fit(known: Sequence[Known]) -> dict[str, Band]:
    """The band of each error."""
    models = {run.model for run in known}
    others = {model: [run.residual.traits for run in known if run.model != model] for model in models}
    degrees = {run.id: novelty(run.residual.traits, others[run.model]).degree for run in known}
    return {name: _narrowest(name, known, degrees) for name in FITS}


def _narrowest(name: str, known: Sequence[Known], degrees: Mapping[str, float]) -> Band:
    covered, widenings = FITS[name]
    size: Callable[[float], float] = (lambda error: max(0.0, error)) if name in UPWARDS else abs
    pairs = [(size(run.residual.errors[name]), degrees[run.id]) for run in known if name in run.residual.errors]
    errors, novelties = np.array(pairs).T
    bands = [_covering(errors, novelties, each, covered) for each in widenings]
    return min(bands, key=lambda band: float(np.mean(np.log(band.base * (1 + band.each * novelties)))))


def _covering(errors: Any, novelties: Any, each: float, covered: int) -> Band:
    base = float(np.percentile(errors / (1 + each * novelties), covered))
    return Band(round(base, 4), each)


def unfitted_kernels() -> dict[Basis, float]:
    """The band that steps have besides, by where their kernels come from: it covers as many of them as that of step times."""
    covered, _ = FITS["step"]
    return kernel_errors(covered)


def left_out(known: Sequence[Known]) -> Callable[[Run, Traits], Confidence]:
    """How sure a forecast of each run is where no run of its model is known."""
    bands, kernels, model_of = fit(known), unfitted_kernels(), {run.id: run.model for run in known}

    def judge(run: Run, of: Traits) -> Confidence:
        others = tuple(other.residual for other in known if other.model != model_of[run.id])
        return confidence(of, Evidence(others, bands, kernels))

    return judge


def _json(of: Traits) -> dict[str, Any]:
    """The facts that are not as they would be if nothing was said."""
    defaults = Traits._field_defaults
    facts = {name: value for name, value in of._asdict().items() if name not in defaults or value != defaults[name]}
    assert of.regime, "a run that was replayed has a regime"
    rounded = {
        name: value if isinstance(value, bool) else round(value, 1) for name, value in of.regime._asdict().items()
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
