"""Fits an operator's parameters to measured kernels, through the very functions that steps are timed with.

Soft-L1 on log errors. A share of the shapes is held out of each fit and scored after it.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim.engine.records import Floats
from sim.measure.least_squares import soft, solve
from sim.specs.hardware import HardwareProfile
from sim.specs.operator_fits import ComputeDtype
from sim.units import NS, US

MOST_CALLS = 1200  # more rows than these change nothing but the time it takes
HELD_OUT = 5  # one shape in so many
APART = 1.1  # of numbers of rows: the next one is so many times as large
SCALE = 0.15  # log error from which on a row counts as an outlier


class Call(NamedTuple):
    """One measured kernel: its shape in words, its seconds, what the model says on a GPU, and a roofline at full peaks.

    `rows` is how many rows a matrix was multiplied with, where the call tells of the kernels that are chosen by them; `size` the bytes of
    a message.
    """

    shape: str
    measured_s: float
    predict_s: Callable[[HardwareProfile], float]
    roofline_s: float = 0.0
    rows: int | None = None
    size: float = 0.0


class Parameter(NamedTuple):
    """A number in a fit: its name on the fit and in a profile's YAML, its unit there, where it starts and its least value."""

    field: str
    key: str
    unit: float = 1.0
    start: float = 0.5
    least: float = 1e-3


class Target(NamedTuple):
    """An operator, which of a profile's fits it fits by what parameters, and what the profile may have measured beside them."""

    operator: str
    fit: str
    parameters: tuple[Parameter, ...]
    dtype: ComputeDtype | None = None
    beside: tuple[str, ...] = ()


class Sizes(NamedTuple):
    """Median and 90th percentile of absolute errors in %."""

    median: float
    p90: float


class Fitted(NamedTuple):
    """Parameters by their names in a YAML, and how far calls are off before and after: those held out, or where there are none all."""

    values: Mapping[str, float]
    num_calls: int
    num_held_out: int
    before: Sizes
    after: Sizes


COMPUTE = Parameter("compute_efficiency", "compute_efficiency")
MEMORY = Parameter("memory_efficiency", "memory_efficiency", start=0.8)
LAUNCH = Parameter("launch_s", "launch_us", US, 5.0, 0.1)
WAVE = Parameter("wave_penalty", "wave_penalty", start=0.4, least=0.0)
QUANTISE = Parameter("quantise_efficiency", "quantise_efficiency", start=0.5)
DENSE, WAVES = (COMPUTE, MEMORY, LAUNCH), (COMPUTE, MEMORY, LAUNCH, WAVE)
EXPERTS = (
    COMPUTE,
    MEMORY,
    LAUNCH._replace(start=40.0),
    Parameter("row_moves", "row_moves", start=4.0, least=1.0),  # each row is read or written at least once
    Parameter("padded_rows", "padded_rows", start=10.0, least=0.0),
)
SORTING = Parameter("token_s", "token_ns", NS, 10.0, 0.0)  # told by experts of several sizes
LARGE_TILES = Parameter("large_tile_reads", "large_tile_reads", start=0.2, least=0.0)  # told where small ones differ
SOFTMAX = Parameter("softmax_dims", "softmax_dims", start=150.0, least=0.0)  # told by heads of several sizes
DECODE = (
    COMPUTE._replace(start=0.1),
    MEMORY,
    LAUNCH._replace(start=10.0),
    Parameter("per_wave_s", "per_wave_us", US, 1.5, 0.0),
)
MIXED = (
    Parameter("decode_rows", "decode_rows", start=50.0),
    Parameter("decode_wave_s", "decode_wave_us", US, 4.5, 0.0),
    Parameter("idle_tile_s", "idle_tile_ns", NS, 5.0, 0.0),
)
REDUCE = (
    Parameter("base_s", "base_us", US, 5.0, 0.1),
    Parameter("per_gpu_s", "per_gpu_us", US, 0.2, 0.0),
    Parameter("link_efficiency", "link_efficiency", start=0.6),
)
TARGETS = (
    Target("gemm bf16", "gemm", DENSE, "bf16", ("by_rows",)),
    Target("gemm fp8", "gemm", (*WAVES, QUANTISE), "fp8", ("by_rows",)),
    Target("gemm nvfp4", "gemm", WAVES, "fp4", ("by_rows",)),
    Target("elementwise", "elementwise", (MEMORY, LAUNCH._replace(start=2.3))),
    Target("decode attention", "decode_attention", DECODE),
    Target("decode attention fp8", "decode_attention_fp8", DECODE),
    Target("prefill attention", "prefill_attention", WAVES),
    Target("mixed attention", "prefill_attention", MIXED),
    Target("prefill attention fp8", "prefill_attention_fp8", WAVES),
    Target("experts bf16", "experts", (*EXPERTS, SORTING), "bf16"),
    Target("experts fp8_block", "experts", (*EXPERTS, SORTING), "fp8"),
    Target("experts nvfp4", "experts", (*EXPERTS, SORTING), "fp4"),
    Target("experts int4", "experts_weight_only", EXPERTS),
    Target("all-reduce", "all_reduce", REDUCE, None, ("by_bytes",)),
)
"""In the order in which they are fitted: mixed calls on top of prefill attention."""


Solver = Callable[[Callable[[Floats], Floats], Floats, Floats], Floats]
"""Parameters with the least loss of the log errors that they give, from where they start and above their least values."""


def nearest(errors_of: Callable[[Floats], Floats], start: Floats, least: Floats) -> Floats:
    """Those by soft-L1 on log errors."""
    return start * solve(lambda x: soft(errors_of(start * x), SCALE), np.ones(len(start)), least / start)


def fit(target: Target, gpu: HardwareProfile, calls: Sequence[Call], solver: Solver = nearest) -> Fitted:
    """The parameters that are nearest to these calls, the rest of the GPU being as it is."""
    calls = _some(calls)
    unseen = held_out(calls)
    fitted_on = [call for call in calls if not _is_held_out(call)] or list(calls)
    start = np.array([parameter.start for parameter in target.parameters])
    least = np.array([parameter.least for parameter in target.parameters])

    def errors_of(x: Floats) -> Floats:
        return log_errors(with_parameters(gpu, target, x), fitted_on)

    found = solver(errors_of, start, least)
    scored = unseen or fitted_on
    before, after = sizes(gpu, scored), sizes(with_parameters(gpu, target, found), scored)
    values = {parameter.key: round(float(x), 3) for parameter, x in zip(target.parameters, found, strict=True)}
    return Fitted(values, len(fitted_on), len(unseen), before, after)


def held_out(calls: Sequence[Call]) -> list[Call]:
    """Those whose shapes no fit sees."""
    return [call for call in calls if _is_held_out(call)]


def _is_held_out(call: Call) -> bool:
    return zlib.crc32(call.shape.encode()) % HELD_OUT == 0


def by_rows(gpu: HardwareProfile, calls: Sequence[Call]) -> dict[int, float]:
    """How many times as long as predicted all matrices of so many rows take together, at numbers of rows that lie apart."""
    totals: dict[int, list[float]] = {}
    for call in calls:
        if call.rows:
            total = totals.setdefault(call.rows, [0.0, 0.0])
            total[0] += call.measured_s
            total[1] += call.predict_s(gpu)
    kept: list[int] = []
    for rows in sorted(totals):
        if not kept or rows >= APART * kept[-1] or rows == max(totals):
            kept.append(rows)
    return {rows: round(totals[rows][0] / totals[rows][1], 3) for rows in kept}


def fitted_gpu(gpu: HardwareProfile, target: Target, fitted: Fitted) -> HardwareProfile:
    """The GPU with what was fitted."""
    return with_parameters(gpu, target, np.array([fitted.values[parameter.key] for parameter in target.parameters]))


def sizes(gpu: HardwareProfile, calls: Sequence[Call]) -> Sizes:
    """How far the GPU's fits are off these calls."""
    median, p90 = np.percentile(100 * np.abs(np.expm1(log_errors(gpu, calls))), [50, 90])
    return Sizes(round(float(median), 1), round(float(p90), 1))


def log_errors(gpu: HardwareProfile, calls: Sequence[Call]) -> Floats:
    """Logarithms of predicted over measured."""
    ratios = np.array([call.predict_s(gpu) / call.measured_s for call in calls])
    return np.asarray(np.log(ratios), dtype=np.float64)


def with_parameters(gpu: HardwareProfile, target: Target, x: Floats) -> HardwareProfile:
    """The GPU with these parameters in place of its fit, and of what was measured beside it."""
    changes: dict[str, Any] = {p.field: float(value) * p.unit for p, value in zip(target.parameters, x, strict=True)}
    one: Any = getattr(gpu.operators, target.fit)
    changes |= dict.fromkeys(target.beside, ())
    changed: Any = replace(one, **changes) if target.dtype is None else _in_dtype(one, target.dtype, changes)
    fits: dict[str, Any] = {target.fit: changed}
    return replace(gpu, operators=replace(gpu.operators, **fits))


def _in_dtype(fits: dict[str, Any], dtype: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {**fits, dtype: replace(fits.get(dtype, fits["bf16"]), **changes)}


def _some(calls: Sequence[Call]) -> Sequence[Call]:
    if len(calls) <= MOST_CALLS:
        return calls
    return [calls[index] for index in np.random.default_rng(0).choice(len(calls), MOST_CALLS, replace=False)]
