"""Fits every operator's parameters to kernels measured on each GPU, and writes `kernel_fits.json`.

    python -m benchmarks.fit_kernels ../shared/steptime

As `servecast calibrate --kernels` does, by SciPy's solver. Where the tables have nothing (elementwise kernels), the
numbers of `params.json` are carried over. GEMMs of fp8 in blocks are left to fp8's fit: their tables hold 60 to 250 us a call
that no graph would replay. write_profiles.py puts the result into the hardware profiles.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.kernels import GPUS, OPERATORS
from sim.engine.records import Floats
from sim.measure.kernel_fits import (
    LARGE_TILES,
    SCALE,
    SOFTMAX,
    SORTING,
    TARGETS,
    Call,
    Fitted,
    Parameter,
    Target,
    fit,
    fitted_gpu,
    held_out,
    sizes,
    with_parameters,
)
from sim.specs.hardware import HardwareProfile, load_gpu

OUTPUT = Path(__file__).with_name("kernel_fits.json")
ONE_CHIP = ("H100", "H200")
"""GH100: as many SMs at one clock, and one power limit. Their tables agree within 5 % on matrices of 16 bits and of fp8 in blocks, which H100 multiplies
faster; on fp8 by tensors, H100's machine was 12 % slower in the median and 19 % on the largest, where servers of H100s are the faster ones.
"""
MULTIPLYING = ("gemm", "experts", "experts_weight_only")
ARITHMETIC = ("compute_efficiency", "wave_penalty")
OF_TENSORRT_LLM = "B200"
"""Its experts have kernels of TensorRT-LLM, which read weights faster in tiles of 8 rows than in larger ones, by every table."""
ONE_HEAD_SIZE = {"A100": "L40S", "RTX4090": "L40S"}
"""Their tables have heads of 128 alone, which do not tell how long a softmax takes: it is that of another GPU with FlashAttention 2."""
TELL_OF_SOFTMAX = ("prefill attention", "prefill attention fp8")
SORTED_AS = {"experts int4": "experts bf16"}
"""Its tables have experts of one size, which do not tell what sorting tokens takes: vLLM does that by the same kernels for both."""
WORST_TOPOLOGY = {"L40S": "2"}  # its PCIe host joins 4 and 8 GPUs 5 to 10 times slower than two: two are fitted


def main(folder: Path) -> None:
    """Fits each operator on each GPU that has rows for it."""
    print(f"{'operator':22}{'GPU':12}{'rows':>7}{'held out':>10}{'median %':>10}{'P90 %':>8}")
    fits = {name: _fits(folder, name, load_gpu(GPUS[name])) for name in GPUS if name not in ONE_HEAD_SIZE}
    for name, other in ONE_HEAD_SIZE.items():
        fits[name] = _fits(folder, name, load_gpu(GPUS[name]), fits[other]["prefill attention"][SOFTMAX.key])
    _share_arithmetic(fits, folder / "data")
    in_order = {name: fits[name] for name in GPUS}
    OUTPUT.write_text(json.dumps(in_order, indent=1) + "\n", encoding="utf-8")


def targets_of(name: str) -> Iterator[Target]:
    """What is fitted to that GPU: where its tables have heads of several sizes, they tell how long a softmax takes as well."""
    for target in TARGETS:
        more: tuple[Parameter, ...] = ()
        if target.operator in TELL_OF_SOFTMAX and name not in ONE_HEAD_SIZE:
            more = (SOFTMAX,)
        elif target.fit == "experts" and name == OF_TENSORRT_LLM:
            more = (LARGE_TILES,)
        yield target._replace(parameters=(*target.parameters, *more))


def _fits(folder: Path, name: str, gpu: HardwareProfile, softmax_dims: float | None = None) -> dict[str, Any]:
    """By operator; where the tables do not tell of softmax, it is what another GPU has."""
    if softmax_dims is not None:
        prefill = replace(gpu.operators.prefill_attention, softmax_dims=softmax_dims)
        gpu = replace(gpu, operators=replace(gpu.operators, prefill_attention=prefill))
    params = json.loads((folder / "params.json").read_text(encoding="utf-8"))[name]["elementwise"]
    fits: dict[str, Any] = {"elementwise": {"memory_efficiency": params["e_m"], "launch_us": params["t0"]}}
    for target in targets_of(name):
        calls = calls_of(target, folder / "data", name, gpu)
        if calls:
            sorting_ns = fits[SORTED_AS[target.operator]][SORTING.key] if target.operator in SORTED_AS else None
            if sorting_ns is not None:
                gpu = with_parameters(gpu, target._replace(parameters=(SORTING,)), np.array([sorting_ns]))
            fitted = fit(target, gpu, calls, _nearest)
            gpu = fitted_gpu(gpu, target, fitted)
            _print(target.operator, name, fitted)
            kind = "holdout" if fitted.num_held_out else "insample"
            fits[target.operator] = {**fitted.values, f"{kind}_med_p90": list(fitted.after)}
            if sorting_ns is not None:
                fits[target.operator][SORTING.key] = sorting_ns
            if target.operator == "all-reduce":
                fits[target.operator] = {**fitted.values, **_by_bytes(gpu, calls)}
    if softmax_dims is not None:
        fits["prefill attention"][SOFTMAX.key] = softmax_dims
    return fits


def _share_arithmetic(fits: dict[str, dict[str, Any]], data: Path) -> None:
    """Boards of one chip multiply matrices at the rate of the faster table, and are scored again."""
    for target in TARGETS:
        if target.fit not in MULTIPLYING or any(target.operator not in fits[name] for name in ONE_CHIP):
            continue
        fastest = max(ONE_CHIP, key=lambda name: fits[name][target.operator]["compute_efficiency"])
        shared = {key: value for key, value in fits[fastest][target.operator].items() if key in ARITHMETIC}
        for name in set(ONE_CHIP) - {fastest}:
            fit = fits[name][target.operator]
            fit |= shared
            gpu = load_gpu(GPUS[name])
            values = np.array([fit[parameter.key] for parameter in target.parameters])
            scored = held_out(calls_of(target, data, name, gpu))
            fit["holdout_med_p90"] = list(sizes(with_parameters(gpu, target, values), scored))


def _nearest(errors_of: Callable[[Floats], Floats], start: Floats, least: Floats) -> Floats:
    found = least_squares(errors_of, start, loss="soft_l1", f_scale=SCALE, bounds=(least, np.inf), x_scale=start)
    return np.asarray(found.x, dtype=np.float64)


def calls_of(target: Target, data: Path, name: str, gpu: HardwareProfile) -> list[Call]:
    """Those that the operator is fitted to on that GPU."""
    calls = list(OPERATORS[target.operator](data, name, gpu)) if target.operator in OPERATORS else []
    if target.operator == "all-reduce" and name in WORST_TOPOLOGY:
        calls = [call for call in calls if call.shape == WORST_TOPOLOGY[name]]
    return calls


def _by_bytes(gpu: HardwareProfile, calls: list[Call]) -> dict[str, Any]:
    """What the formula leaves by numbers of GPUs and bytes, and how far every other size is off by its neighbours.

    A sum never takes longer than a larger one: where it was measured so, once in a while, something else ran.
    """
    by_bytes, errors = {}, []
    for num_gpus in sorted({int(call.shape) for call in calls}):
        of = sorted((call for call in calls if call.shape == str(num_gpus)), key=lambda call: call.size)
        sizes, measured_s = np.array([call.size for call in of]), np.array([call.measured_s for call in of])
        least_s = np.minimum.accumulate(measured_s[::-1])[::-1]
        factors = least_s / [call.predict_s(gpu) for call in of]
        by_bytes[num_gpus] = {int(size): round(float(factor), 3) for size, factor in zip(sizes, factors, strict=True)}
        for one in (0, 1):
            unseen = np.interp(sizes[one::2], sizes[1 - one :: 2], least_s[1 - one :: 2])
            errors += [*100 * abs(unseen / measured_s[one::2] - 1)]
    median, p90 = (round(float(error), 1) for error in np.percentile(errors, [50, 90]))
    return {"by_bytes": by_bytes, "holdout_med_p90": [median, p90]}


def _print(operator: str, name: str, fitted: Fitted) -> None:
    counts = f"{fitted.num_calls:7}{fitted.num_held_out:10}"
    print(f"{operator:22}{name:12}{counts}{fitted.after.median:10.1f}{fitted.after.p90:8.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
