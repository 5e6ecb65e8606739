"""How far the operators are off measured kernels, by operator and GPU, beside a plain roofline.

    python benchmarks/kernels.py ../shared/steptime/data [GPU ...]

Times measured with a warm L2 cache are left out: a model's weights and contexts do not fit there. The tables hold the
shapes that parameters were fitted on as well as those held out, so errors here are a little lower than out of sample.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import Attention, Experts, Linear, WeightFormat
from sim.steptime.operators import (
    ACTIVATION_BYTES,
    all_reduce_s,
    decode_attention,
    decode_attention_s,
    experts_s,
    gemm_s,
    prefill_attention_s,
    prefill_work,
)
from sim.units import US

GPUS = {
    "A100": "a100-sxm-80gb",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "L40S": "l40s",
    "B200": "b200-sxm",
    "RTXPRO6000": "rtx-pro-6000",
    "RTX4090": "rtx-4090",
}
FORMATS = {
    "bfloat16": WeightFormat(),
    "fp8": WeightFormat("fp8", 8, 0, "fp8"),
    "fp8_block": WeightFormat("fp8_block", 8, 32 / 16384, "fp8"),
    "nvfp4": WeightFormat("nvfp4", 4, 0.5, "fp4"),
}
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}


class Scored(NamedTuple):
    """One kernel call: measured and predicted seconds, and what a roofline at full peaks says."""

    measured_s: float
    predicted_s: float
    roofline_s: float


def main(data: Path, only: list[str]) -> None:
    """Prints one row for each operator and GPU: calls, median and 90th percentile of the absolute error in %."""
    print(f"{'operator':22}{'GPU':12}{'calls':>7}{'median %':>10}{'P90 %':>8}{'bias %':>8}{'roofline median %':>19}")
    for operator, score in OPERATORS.items():
        for name, profile in GPUS.items():
            if not only or name in only:
                _print_row(operator, name, list(score(data, name, load_gpu(profile))))


def _print_row(operator: str, gpu: str, scored: list[Scored]) -> None:
    if not scored:
        return
    measured, predicted, roofline = np.array(scored).T
    error, plain = 100 * (predicted / measured - 1), 100 * abs(roofline / measured - 1)
    median, p90 = np.percentile(abs(error), [50, 90])
    row = f"{operator:22}{gpu:12}{len(scored):7}{median:10.1f}{p90:8.1f}{np.median(error):8.1f}{np.median(plain):19.1f}"
    print(row)


def _rows(data: Path, table: str, gpu: str) -> pd.DataFrame:
    """The table's rows of that GPU from the source its parameters were fitted on, with a cold L2."""
    rows = pd.read_csv(data / f"{table}.csv.gz")
    source = "LLMServingSim" if gpu == "RTX4090" else "aiconfigurator"
    rows = rows[(rows["gpu"] == gpu) & rows["source"].str.startswith(source)] if "source" in rows else rows
    return rows[rows["l2_warm"] == 0] if "l2_warm" in rows else rows


def _calls(rows: pd.DataFrame) -> Iterator[Any]:
    """The table's rows, each with its columns as attributes."""
    return iter(rows.itertuples())


def _gemm(dtype: str) -> Callable[[Path, str, HardwareProfile], Iterator[Scored]]:
    def score(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Scored]:
        rows, weight = _rows(data, "gemm", name), FORMATS[dtype]
        if weight.compute not in gpu.peak_flops:
            return
        for row in _calls(rows[rows["dtype"] == dtype]):
            linear = Linear("gemm", int(row.k), int(row.n), "replicated", weight=weight)
            moved = linear.num_bytes + row.m * row.k * weight.bits / 8 + ACTIVATION_BYTES * row.m * row.n
            plain = _roofline_s(gpu, 2.0 * row.m * row.n * row.k, moved, weight)
            yield Scored(row.time_us * US, gemm_s(float(row.m), linear, gpu), plain)

    return score


def _decode(kv_cache_dtype: str) -> Callable[[Path, str, HardwareProfile], Iterator[Scored]]:
    def score(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Scored]:
        rows, kv_bytes = _rows(data, "attention_decode", name), KV_BYTES[kv_cache_dtype]
        for row in _calls(rows[(rows["kv_cache_dtype"] == kv_cache_dtype) & (rows["hd"] == 128)]):
            attention = Attention("full", int(row.hq), int(row.hkv), int(row.hd), int(row.hd))
            work = decode_attention(row.b, attention, kv_bytes, gpu)
            context_tokens = float(row.b * row.ctx)
            predicted = work.fixed_s + decode_attention_s(work, context_tokens)
            plain = _roofline_s(gpu, 0.0, context_tokens * attention.kv_numbers_per_token * kv_bytes)
            yield Scored(row.time_us * US, predicted, plain)

    return score


def _prefill(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Scored]:
    rows = _rows(data, "attention_prefill", name)
    launch_s = gpu.operators.prefill_attention.launch_s
    for row in _calls(rows[(rows["kv_cache_dtype"] == "bfloat16") & (rows["hd"] == 128)]):
        attention = Attention("full", int(row.hq), int(row.hkv), int(row.hd), int(row.hd))
        flops, num_tiles, moved = (row.b * one for one in prefill_work(row.q, row.kv_prev, attention, 2.0))
        plain = _roofline_s(gpu, 4.0 * row.b * row.hq * row.hd * row.q * (row.kv_prev + row.q / 2), moved)
        yield Scored(row.time_us * US, launch_s + prefill_attention_s(flops, num_tiles, moved, gpu), plain)


def _experts(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Scored]:
    rows = _rows(data, "moe", name)
    distribution = "power_law_1.01" if name == "A100" else "balanced"
    rows = rows[(rows["moe_dtype"] == "bfloat16") & (rows["distribution"] == distribution) & (rows["moe_ep_size"] == 1)]
    for row in _calls(rows):
        per_gpu = int(row.inter_size // row.moe_tp_size)
        experts = Experts(int(row.num_experts), int(row.topk), int(row.hidden_size), per_gpu)
        routed = float(row.num_tokens * row.topk)
        read = min(experts.num_experts, routed) * experts.num_weights_per_expert * 2.0
        plain = _roofline_s(gpu, 2 * routed * experts.num_weights_per_expert, read)
        yield Scored(row.time_us * US, experts_s(float(row.num_tokens), experts, gpu), plain)


def _all_reduce(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Scored]:
    rows = _rows(data, "allreduce", name)
    for row in _calls(rows[(rows["backend"] == "vllm_graph") & (rows["message_bytes"] <= 128 * 2**20)]):
        num_gpus, message_bytes = int(row.num_gpus), float(row.message_bytes)
        plain = 2 * (num_gpus - 1) / num_gpus * message_bytes / gpu.all_reduce_bytes_per_s(num_gpus)
        yield Scored(row.time_us * US, all_reduce_s(message_bytes, num_gpus, gpu), plain)


def _roofline_s(gpu: HardwareProfile, flops: float, moved_bytes: float, weight: WeightFormat | None = None) -> float:
    peak = gpu.peak_flops[weight.compute if weight else "bf16"]
    return max(flops / peak, moved_bytes / gpu.memory_bandwidth_bytes_per_s)


OPERATORS: dict[str, Callable[[Path, str, HardwareProfile], Iterator[Scored]]] = {
    "gemm bf16": _gemm("bfloat16"),
    "gemm fp8": _gemm("fp8"),
    "gemm fp8_block": _gemm("fp8_block"),
    "gemm nvfp4": _gemm("nvfp4"),
    "decode attention": _decode("bfloat16"),
    "decode attention fp8": _decode("fp8"),
    "prefill attention": _prefill,
    "experts bf16": _experts,
    "all-reduce": _all_reduce,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
