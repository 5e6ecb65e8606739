"""How far a forecast can be trusted, from the errors on measured runs like it.

`residuals.json` holds the errors of every validated run with what was run; benchmarks/accuracy.py writes it.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sim.metrics.statistics import percentiles
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.operator_fits import Basis

if TYPE_CHECKING:
    from sim.measure.runs import Run
    from sim.measure.validate import RunResult

Level = Literal["validated", "extrapolated"]
METRICS = {"output_throughput": "tpot_mean", "ttft": "ttft_mean", "tpot": "tpot_mean"}
"""What a band is given for, and the residual it is drawn from; throughput at saturation goes as the time per token."""

FACETS = ("gpu", "family", "dtype", "size")
FEWEST_RUNS = 3  # below, a set of runs says too little of itself and the next larger one is asked
SIZE_RANGE = 2.0  # a model within this factor of one that was measured, in active parameters a GPU, is no new size
BAND_PERCENTILE = 90
# What kernels are off by in the median on a GPU that was left out of their fit: 12.5 % for the worst (A100's GEMMs), 4 % for a
# sibling's parameters on the same chip (H200 by H100's).
KERNEL_ERRORS: Mapping[Basis, float] = {"fitted": 0.0, "derived": 4.0, "generic": 12.5}


class Traits(NamedTuple):
    """What decides whether a run resembles another."""

    gpu: str
    family: str
    dtype: str
    active_parameters_per_gpu: float
    kernels: Basis = "fitted"


class Residual(NamedTuple):
    """A validated run: what it was, and its signed errors in %."""

    traits: Traits
    errors: Mapping[str, float]


class Confidence(NamedTuple):
    """`validated` where runs like it were measured, else which facets were not; bands are +-% of each metric."""

    level: Level
    extrapolates: tuple[str, ...]
    num_runs: int
    bands: Mapping[str, float]

    def __str__(self) -> str:
        bands = ", ".join(f"{name} +-{band:.0f} %" for name, band in self.bands.items())
        if self.level == "validated":
            return f"validated on {self.num_runs} measured runs like it: {bands}"
        return f"extrapolated ({', '.join(self.extrapolates)} never measured): {bands}"

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "extrapolates": list(self.extrapolates),
            "num_runs": self.num_runs,
            "bands_percent": dict(self.bands),
            "text": str(self),
        }


def traits(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine) -> Traits:
    """Those of a deployment."""
    size = model.num_active_parameters / engine.tensor_parallel_size
    kernels = gpu.operators.gemm["bf16"].basis
    return Traits(gpu.name, model.model_type, model.quantization or "bf16", float(size), kernels)


def residual_rows(results: "Sequence[tuple[Run, RunResult, Traits]]") -> list[dict[str, Any]]:
    """Validated runs as rows of `residuals.json`."""
    metrics = sorted(set(METRICS.values()))
    return [
        {"id": run.id, **_facts(traits), "errors": {m: round(result.whole.errors[m], 2) for m in metrics}}
        for run, result, traits in results
        if result.whole is not None and set(metrics) <= result.whole.errors.keys()
    ]


def _facts(of: Traits) -> dict[str, Any]:
    return {name: value for name, value in of._asdict().items() if name != "kernels"}


@cache
def known_residuals() -> tuple[Residual, ...]:
    """Those that come with Servecast."""
    text = Path(__file__).with_name("residuals.json").read_text(encoding="utf-8")
    return tuple(
        Residual(Traits(row["gpu"], row["family"], row["dtype"], row["active_parameters_per_gpu"]), row["errors"])
        for row in json.loads(text)
    )


def confidence(of: Traits, residuals: Sequence[Residual] | None = None) -> Confidence:
    """Level and bands: the 90th percentile of errors on like runs, and more for each facet that none of them shares.

    Facets that were each measured, but never together, count as a new GPU.
    """
    known = known_residuals() if residuals is None else residuals
    missing = tuple(facet for facet in FACETS if not any(_shares(facet, of, residual.traits) for residual in known))
    like = [residual for residual in known if all(_shares(facet, of, residual.traits) for facet in FACETS)]
    level: Level = "validated" if like else "extrapolated"
    apart = missing or (() if like else ("this combination",))
    new = missing if missing or like else ("gpu",)
    nearest, kernels = _nearest(of, known), KERNEL_ERRORS[of.kernels]
    bands = {name: _band(metric, nearest, known, new, kernels) for name, metric in METRICS.items()}
    return Confidence(level, apart, len(like), bands)


def confidence_json(found: Confidence | None) -> dict[str, Any]:
    """As answers carry it; None stands for step times from elsewhere, which are not judged."""
    return found.to_json() if found else {"level": "unknown", "text": "step times as given"}


def tied(first: float, second: float, band_percent: float) -> bool:
    """Whether two figures of one metric lie inside each other's band, so that the forecast does not tell them apart."""
    return abs(first - second) <= band_percent / 100 * min(abs(first), abs(second))


def _shares(facet: str, of: Traits, other: Traits) -> bool:
    if facet == "size":
        ratio = of.active_parameters_per_gpu / other.active_parameters_per_gpu
        return 1 / SIZE_RANGE <= ratio <= SIZE_RANGE
    return bool(getattr(of, facet) == getattr(other, facet))


def _nearest(of: Traits, known: Sequence[Residual]) -> list[Residual]:
    """The runs that share most facets; at least a few, those that share fewer included where needed."""
    shared = [sum(_shares(facet, of, residual.traits) for facet in FACETS) for residual in known]
    for least in range(max(shared), -1, -1):
        chosen = [residual for residual, count in zip(known, shared, strict=True) if count >= least]
        if len(chosen) >= FEWEST_RUNS:
            return chosen
    return list(known)


def _band(
    metric: str, nearest: Sequence[Residual], known: Sequence[Residual], new: Sequence[str], kernels: float
) -> float:
    """The errors of the nearest runs, how much errors differ between the groups of each facet that is new, and kernels'."""
    errors = np.array([abs(residual.errors[metric]) for residual in nearest])
    (seen,) = percentiles(errors, np.ones(len(errors), dtype=np.int64), (BAND_PERCENTILE,))
    spreads = [_spread(metric, facet, known) for facet in new]
    return round(float(np.hypot.reduce([seen, kernels, *(2 * spread for spread in spreads)])), 1)


def _spread(metric: str, facet: str, known: Sequence[Residual]) -> float:
    """The standard deviation of the mean error from group to group: what a new group may be off by."""
    groups: dict[object, list[float]] = {}
    for residual in known:
        groups.setdefault(_group(facet, residual.traits), []).append(residual.errors[metric])
    return float(np.std([np.mean(errors) for errors in groups.values()]))


def _group(facet: str, of: Traits) -> object:
    """Sizes are grouped by powers of two."""
    return int(np.log2(of.active_parameters_per_gpu)) if facet == "size" else getattr(of, facet)
