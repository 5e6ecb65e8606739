"""What rules of the operators are worth on calls, and on GPUs, that their fit has not seen.

    python -m benchmarks.left_out ../shared/steptime

Median errors in %, of each GPU with such calls: without the rule, with what was fitted to that GPU (on shapes or sizes held out), and with what
was fitted to each of the others, in the median over these.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fit_kernels import ONE_HEAD_SIZE, OUTPUT, calls_of
from benchmarks.kernels import GPUS
from sim.measure.kernel_fits import MIXED, TARGETS, Call, Target, fit, fitted_gpu, sizes
from sim.report.tables import aligned
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.operator_fits import OperatorFits, PrefillAttentionFit

HEADER = ("rule", "GPU", "calls", "without", "held out", "GPU left out")
RULES = {
    "experts bf16": "rows of experts are gathered and added up",
    "experts fp8_block": "rows of experts are gathered and added up",
    "experts int4": "weights of 4 bits have a fit of their own",
    "all-reduce": "sums take what was measured at their size",
    "mixed attention": "tiles without queries cost time",
    "prefill attention": "a softmax takes as long whatever the heads' size",
}


class Measured(NamedTuple):
    """A GPU as its profile has it, and calls of an operator."""

    gpu: HardwareProfile
    calls: list[Call]


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """By rule and GPU."""
    fits = json.loads(OUTPUT.read_text(encoding="utf-8"))
    for target in TARGETS:
        if target.operator in RULES:
            measured = {name: Measured(gpu, calls_of(target, folder / "data", name, gpu)) for name, gpu in _gpus()}
            measured = {name: one for name, one in measured.items() if one.calls and _tells(target, name)}
            for name, (gpu, calls) in measured.items():
                others = [_with(target, gpu, other.gpu) for of, other in measured.items() if of != name]
                left_out = [sizes(other, calls).median for other in others]
                held_out, _ = fits[name][target.operator]["holdout_med_p90"]
                before = sizes(_without(target, gpu, calls), calls).median
                yield RULES[target.operator], gpu.name, len(calls), before, held_out, float(np.median(left_out))


def _tells(target: Target, name: str) -> bool:
    return target.operator != "prefill attention" or name not in ONE_HEAD_SIZE


def _gpus() -> Iterator[tuple[str, HardwareProfile]]:
    return ((name, load_gpu(profile)) for name, profile in GPUS.items())


def _without(target: Target, gpu: HardwareProfile, calls: list[Call]) -> HardwareProfile:
    fits = gpu.operators
    match target.operator:
        case "experts int4":
            return _having(gpu, replace(fits, experts_weight_only=fits.experts["bf16"]))
        case "all-reduce":
            return _having(gpu, replace(fits, all_reduce=replace(fits.all_reduce, by_bytes=())))
        case "experts bf16" | "experts fp8_block":
            assert target.dtype, "experts are fitted by their dtype"
            still = replace(fits.experts[target.dtype], row_moves=0.0)
            at_rest = _having(gpu, replace(fits, experts={**fits.experts, target.dtype: still}))
            fewer = target._replace(parameters=target.parameters[:3])
            return fitted_gpu(at_rest, fewer, fit(fewer, at_rest, calls))
        case "prefill attention":
            hidden = _having(gpu, replace(fits, prefill_attention=replace(fits.prefill_attention, softmax_dims=0.0)))
            return fitted_gpu(hidden, target, fit(target, hidden, calls))
    idle = _having(gpu, replace(fits, prefill_attention=replace(fits.prefill_attention, idle_tile_s=0.0)))
    fewer = target._replace(parameters=MIXED[:2])
    return fitted_gpu(idle, fewer, fit(fewer, idle, calls))


def _with(target: Target, gpu: HardwareProfile, other: HardwareProfile) -> HardwareProfile:
    """The GPU with the other's part of the rule."""
    fits, others = gpu.operators, other.operators
    match target.operator:
        case "experts int4":
            return _having(gpu, replace(fits, experts_weight_only=others.experts_weight_only))
        case "all-reduce":
            return _having(gpu, replace(fits, all_reduce=replace(fits.all_reduce, by_bytes=others.all_reduce.by_bytes)))
        case "experts bf16" | "experts fp8_block":
            assert target.dtype, "experts are fitted by their dtype"
            moves = others.experts[target.dtype].row_moves
            mine = replace(fits.experts[target.dtype], row_moves=moves)
            return _having(gpu, replace(fits, experts={**fits.experts, target.dtype: mine}))
        case "prefill attention":
            softmax_dims = others.prefill_attention.softmax_dims
            return _having(gpu, replace(fits, prefill_attention=_with_softmax(fits.prefill_attention, softmax_dims)))
    riding = {parameter.field: getattr(others.prefill_attention, parameter.field) for parameter in target.parameters}
    return _having(gpu, replace(fits, prefill_attention=replace(fits.prefill_attention, **riding)))


def _with_softmax(fit: PrefillAttentionFit, softmax_dims: float) -> PrefillAttentionFit:
    """With common heads as fast as they are."""
    changed = replace(fit, softmax_dims=softmax_dims)
    slower = fit.efficiency_of_common_heads / changed.efficiency_of_common_heads
    return replace(changed, compute_efficiency=slower * fit.compute_efficiency)


def _having(gpu: HardwareProfile, fits: OperatorFits) -> HardwareProfile:
    return replace(gpu, operators=fits)


if __name__ == "__main__":
    print(aligned(HEADER, rows(Path(sys.argv[1]))))
