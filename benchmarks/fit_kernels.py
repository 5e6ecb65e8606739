"""Fits every operator's parameters to kernels measured on each GPU, and writes `kernel_fits.json`.

    python -m benchmarks.fit_kernels ../shared/steptime

Soft-L1 on log errors, through the very functions that the simulator calls. A fifth of the shapes is held out of each fit and
scored after it; where the tables have nothing (elementwise kernels), the numbers of `params.json` are carried over. GEMMs of
fp8 in blocks are left to fp8's fit: their tables hold 60 to 250 us a call that no graph would replay.
write_profiles.py puts the result into the hardware profiles.
"""

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.kernels import GPUS, OPERATORS, Call
from sim.engine.records import Floats
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.units import US

OUTPUT = Path(__file__).with_name("kernel_fits.json")
MOST_CALLS = 1200  # more rows than these change nothing but the time it takes
HELD_OUT = 5  # one shape in so many
SCALE = 0.15  # log error from which on a row counts as an outlier


class Parameter(NamedTuple):
    """A number in a fit: its name in the result and on the fit, its unit, where it starts and its least value."""

    key: str
    field: str
    unit: float = 1.0
    start: float = 0.5
    least: float = 1e-3


E_C, E_M = Parameter("e_c", "compute_efficiency"), Parameter("e_m", "memory_efficiency", start=0.8)
T0 = Parameter("t0", "launch_s", US, 5.0, 0.1)
XH = Parameter("xh", "wave_penalty", start=0.4, least=0.0)
DENSE, WAVES = (E_C, E_M, T0), (E_C, E_M, T0, XH)
DECODE = (E_C._replace(start=0.1), E_M, T0._replace(start=10.0), Parameter("c", "per_wave_s", US, 1.5, 0.0))
MIXED = (Parameter("rows", "decode_rows", start=50.0), Parameter("wave", "decode_wave_s", US, 4.5, 0.0))
REDUCE = (
    Parameter("a0", "base_s", US, 5.0, 0.1),
    Parameter("a1", "per_gpu_s", US, 0.2, 0.0),
    Parameter("e_link", "link_efficiency", start=0.6),
)


class Target(NamedTuple):
    """An operator of `kernels.OPERATORS`, its key in the result, and which of a profile's fits it fits by what parameters."""

    operator: str
    key: str
    fit: str
    parameters: tuple[Parameter, ...]
    dtype: str | None = None


TARGETS = (
    Target("gemm bf16", "gemm_bf16", "gemm", DENSE, "bf16"),
    Target("gemm fp8", "gemm_fp8", "gemm", WAVES, "fp8"),
    Target("gemm nvfp4", "gemm_fp4", "gemm", WAVES, "fp4"),
    Target("decode attention", "attn_decode", "decode_attention", DECODE),
    Target("decode attention fp8", "attn_decode_fp8", "decode_attention_fp8", DECODE),
    Target("prefill attention", "attn_prefill", "prefill_attention", WAVES),
    Target("mixed attention", "attn_mixed", "prefill_attention", MIXED),
    Target("experts bf16", "moe_bf16", "experts", (E_C, E_M, T0._replace(start=40.0)), "bf16"),
    Target("experts fp8_block", "moe_fp8_block", "experts", (E_C, E_M, T0._replace(start=40.0)), "fp8"),
    Target("all-reduce", "allreduce", "all_reduce", REDUCE),
)
WORST_TOPOLOGY = {"L40S": "2"}  # its PCIe host joins 4 and 8 GPUs 5 to 10 times slower than two: two are fitted


def main(folder: Path) -> None:
    """Fits each operator on each GPU that has rows for it."""
    fits = {name: _carried_over(folder, name) for name in GPUS}
    print(f"{'operator':22}{'GPU':12}{'rows':>7}{'held out':>10}{'median %':>10}{'P90 %':>8}")
    for target in TARGETS:
        for name, profile in GPUS.items():
            calls = _calls(target, folder / "data", name, load_gpu(profile))
            if calls:
                fits[name][target.key] = _fit(target, name, _with_fits(load_gpu(profile), fits[name]), calls)
    OUTPUT.write_text(json.dumps(fits, indent=1) + "\n", encoding="utf-8")


def _carried_over(folder: Path, name: str) -> dict[str, Any]:
    params = json.loads((folder / "params.json").read_text(encoding="utf-8"))
    return {"elementwise": params[name]["elementwise"]}


def _with_fits(gpu: HardwareProfile, fits: dict[str, Any]) -> HardwareProfile:
    """The GPU with what was fitted so far: mixed calls are fitted on top of prefill attention."""
    for target in TARGETS:
        if target.key in fits:
            gpu = _with(gpu, target, np.array([fits[target.key][parameter.key] for parameter in target.parameters]))
    return gpu


def _calls(target: Target, data: Path, name: str, gpu: HardwareProfile) -> list[Call]:
    calls = list(OPERATORS[target.operator](data, name, gpu))
    if target.key == "allreduce" and name in WORST_TOPOLOGY:
        calls = [call for call in calls if call.shape == WORST_TOPOLOGY[name]]
    if len(calls) <= MOST_CALLS:
        return calls
    return [calls[index] for index in np.random.default_rng(0).choice(len(calls), MOST_CALLS, replace=False)]


def _fit(target: Target, name: str, gpu: HardwareProfile, calls: Sequence[Call]) -> dict[str, Any]:
    held_out = [call for call in calls if zlib.crc32(call.shape.encode()) % HELD_OUT == 0]
    fitted_on = [call for call in calls if zlib.crc32(call.shape.encode()) % HELD_OUT] or list(calls)
    start = np.array([parameter.start for parameter in target.parameters])
    found = least_squares(
        _log_errors_of(target, gpu, fitted_on),
        start,
        loss="soft_l1",
        f_scale=SCALE,
        bounds=([parameter.least for parameter in target.parameters], np.inf),
        x_scale=start,
    )
    scored = held_out or fitted_on
    errors = 100 * abs(np.expm1(_log_errors_of(target, gpu, scored)(found.x)))
    median, p90 = np.percentile(errors, [50, 90])
    print(f"{target.operator:22}{name:12}{len(fitted_on):7}{len(held_out):10}{median:10.1f}{p90:8.1f}")
    values = {parameter.key: round(float(x), 3) for parameter, x in zip(target.parameters, found.x, strict=True)}
    return values | {"holdout_med_p90" if held_out else "insample_med_p90": [round(median, 1), round(p90, 1)]}


def _log_errors_of(target: Target, gpu: HardwareProfile, calls: Sequence[Call]) -> Callable[[Floats], Floats]:
    measured_s = np.array([call.measured_s for call in calls])

    def log_errors(x: Floats) -> Floats:
        tried = _with(gpu, target, x)
        return np.asarray(np.log(np.array([call.predict_s(tried) for call in calls]) / measured_s), dtype=np.float64)

    return log_errors


def _with(gpu: HardwareProfile, target: Target, x: Floats) -> HardwareProfile:
    """The GPU with these parameters in place of its fit."""
    changes = {p.field: float(value) * p.unit for p, value in zip(target.parameters, x, strict=True)}
    fit: Any = getattr(gpu.operators, target.fit)
    changed: Any = replace(fit, **changes) if target.dtype is None else _in_dtype(fit, target.dtype, changes)
    fits: dict[str, Any] = {target.fit: changed}
    return replace(gpu, operators=replace(gpu.operators, **fits))


def _in_dtype(fits: dict[str, Any], dtype: str, changes: dict[str, float]) -> dict[str, Any]:
    return {**fits, dtype: replace(fits.get(dtype, fits["bf16"]), **changes)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
