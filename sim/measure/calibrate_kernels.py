"""Fits a hardware profile to a layer profile of one's own GPU, and says how far its kernels and served runs are off before and after."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.engine.records import Floats
from sim.measure.calibrate import Beside, beside
from sim.measure.kernel_fits import (
    TARGETS,
    Call,
    Fitted,
    Sizes,
    Target,
    by_rows,
    fit,
    fitted_gpu,
    log_errors,
    nearest,
    sizes,
)
from sim.measure.layer_profiles import LayerProfile, read_layer_profile
from sim.measure.runs import Run
from sim.measure.scales import SCALED, Values, profile, scaled, write_profile
from sim.specs.hardware import HardwareProfile, load_gpu, profile_values

CARD = {"compute": "compute_efficiency", "memory bandwidth": "memory_efficiency", "launch": "launch_time"}
"""The factors by which a card may differ from another of its name, as power limits and memory clocks make it: of SCALES those that kernels show."""
STREAMING = ("gemm bf16", "decode attention", "prefill attention")  # not those that find their inputs in the L2 cache
FEW_CALLS = 150  # of an operator, for the factors of the card


class OperatorErrors(NamedTuple):
    """Of one operator: how far calls held out are off before and after, and the median where the fit has not seen their number of ranks."""

    num_calls: int
    before: Sizes
    held_out: Sizes
    ranks_left_out: float | None


@dataclass(frozen=True, slots=True)
class KernelCalibration:
    """A profile whose operators were fitted to a layer profile. `card` says how this card differs from the base, by three factors alone.

    `compared` has the figures of served runs, which nothing was fitted to.
    """

    base: str
    title: str
    operators: Mapping[str, OperatorErrors]
    card: Mapping[str, float]
    values: Values
    compared: Mapping[str, Mapping[str, Beside]]

    @property
    def verdict(self) -> str:
        better = sum(errors.held_out.median < errors.before.median for errors in self.operators.values())
        return f"fitted to {self.title}: {better} of {len(self.operators)} operators are nearer on calls held out"

    def write(self, path: str | Path) -> None:
        """The calibrated profile, with what it was fitted on. Raises ConfigError if it cannot be written."""
        write_profile(Path(path), self.values | {"calibration": self.to_json()})

    def to_json(self) -> dict[str, Any]:
        errors: dict[str, dict[str, float]] = {"before": {}, "held_out": {}, "ranks_left_out": {}}
        for operator, found in self.operators.items():
            errors["before"][operator] = found.before.median
            errors["held_out"][operator] = found.held_out.median
            if found.ranks_left_out is not None:
                errors["ranks_left_out"][operator] = found.ranks_left_out
        return {"base": self.base, "runs": [], "scales": dict(self.card), "errors": errors, "verdict": self.verdict}


def calibrate_kernels(folder: str | Path, gpu: str | Path, runs: Sequence[Run] = ()) -> KernelCalibration:
    """The profile of `gpu` with its operators fitted to the layer profile in `folder`; `runs` measured on it are replayed before and after.

    Raises ProfileError for what is no layer profile, RunsError for runs that cannot be replayed.
    """
    measured, base, values = read_layer_profile(Path(folder)), load_gpu(gpu), profile_values(gpu)
    calls = measured.calls(base)
    fits = _fits(base, calls)
    left_out = _left_out(measured, base)
    fitted = _with_fits(values, fits, measured.title)
    _with_rows(fitted, calls)
    operators = {
        target.operator: OperatorErrors(
            found.num_calls + found.num_held_out, found.before, found.after, left_out.get(target.operator)
        )
        for target, found in fits
    }
    compared = beside(runs, base, profile(fitted))
    return KernelCalibration(base.name, measured.title, operators, _card(calls, values), fitted, compared)


def _fits(gpu: HardwareProfile, calls: Mapping[str, Sequence[Call]]) -> list[tuple[Target, Fitted]]:
    """Each operator that was measured, on top of those before it."""
    found = []
    for target in TARGETS:
        if target.operator in calls:
            found.append((target, fit(target, gpu, calls[target.operator])))
            gpu = fitted_gpu(gpu, *found[-1])
    return found


def _with_fits(values: Values, fits: Sequence[tuple[Target, Fitted]], title: str) -> Values:
    """The profile's YAML with what was fitted, and on what."""
    values = copy.deepcopy(values)
    for target, found in fits:
        error = f"{'held out' if found.num_held_out else 'in sample'}: median error {found.after.median} %, P90 {found.after.p90} %"
        block = _block(values, target)
        for name in target.beside:
            block.pop(name, None)
        block.update({"basis": "fitted", "source": f"{title}; {error}", **found.values})
    names = {f"operators.{target.fit}" for target, _ in fits}
    values["derived"] = [name for name in values.get("derived", ()) if name not in names]
    return values


def _with_rows(values: Values, calls: Mapping[str, Sequence[Call]]) -> None:
    """Adds what the fits leave of kernels that are chosen by the number of rows."""
    gpu = profile(values)
    for target in TARGETS:
        if rows := by_rows(gpu, calls.get(target.operator, ())):
            _block(values, target)["by_rows"] = rows


def _block(values: Values, target: Target) -> Values:
    block: Values = values["operators"][target.fit]
    return block if target.dtype is None else block[target.dtype]


def _left_out(measured: LayerProfile, base: HardwareProfile) -> dict[str, float]:
    """By operator, the median error of each tensor-parallel size where the fit has seen the others alone; nothing of a single size."""
    errors: dict[str, list[float]] = {}
    for size in measured.tables if len(measured.tables) > 1 else ():
        seen, unseen = (
            measured.calls(base, [one for one in measured.tables if (one == size) == is_left_out])
            for is_left_out in (False, True)
        )
        gpu = base
        for target, found in _fits(base, seen):
            gpu = fitted_gpu(gpu, target, found)
            errors.setdefault(target.operator, []).append(sizes(gpu, unseen[target.operator]).median)
    return {operator: round(float(np.mean(medians)), 1) for operator, medians in errors.items()}


def _card(calls: Mapping[str, Sequence[Call]], values: Values) -> dict[str, float]:
    """The factors that bring all calls which stream from memory nearest to the base's, whatever their operator."""
    streaming = [calls[operator] for operator in STREAMING if operator in calls]
    few = [call for of in streaming for call in of[:: max(1, len(of) // FEW_CALLS)]]

    def errors_of(x: Floats) -> Floats:
        scales = dict.fromkeys(SCALED.values(), 1.0) | dict(zip(CARD.values(), x.tolist(), strict=True))
        return log_errors(profile(scaled(values, scales)), few)

    found = nearest(errors_of, np.ones(len(CARD)), np.full(len(CARD), 0.01))
    return {name: round(float(factor), 3) for name, factor in zip(CARD, found, strict=True)}
