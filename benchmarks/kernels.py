"""How far the operators are off measured kernels, by operator and GPU, beside a plain roofline.

    python -m benchmarks.kernels ../shared/steptime/data [GPU ...]

Times measured with a warm L2 cache are left out: a model's weights and contexts do not fit there. The tables hold the
shapes that parameters were fitted on as well as those held out, so errors here are a little lower than out of sample;
fit_kernels.py prints those on held-out shapes.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.routed_rows import is_told, table_load
from sim.measure.kernel_fits import Call
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import Attention, Experts, Linear, WeightFormat
from sim.steptime.expert_routing import ExpertsLoad
from sim.steptime.links import all_reduce_s
from sim.steptime.operators import (
    ACTIVATION_BYTES,
    decode_attention,
    decode_attention_s,
    gemm_s,
    routed_experts,
)
from sim.steptime.prefill import (
    mixed_attention_s,
    prefill_attention,
    prefill_attention_s,
    prefill_fit,
    prefill_speed,
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
    "int4": WeightFormat("int4", 4, 16 / 32),
}
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
LARGEST_MESSAGE = 128 * 2**20
LITTLE_KV_BYTES = 4 * 2**20
TWO_MATRICES = {(128, 6, 2688), (512, 22, 2048)}
"""Nemotron's experts, by how many there are, how many a token has and the hidden size: read as three matrices they would come faster than the GPU's
memory gives anything. A100's tables, of an older vLLM, have three."""
MOST_SLICES = 8
"""Of an expert, as GPUs of one server share it; tables have sixteenths and parts of 32 as well, down to 24 columns, which no kernel is tuned for."""
HALF_OF_THEM = (256, 8, 7168)
"""DeepSeek's: its router lets tokens choose among half of them, and rows do not say which; these would be as fast."""


Calls = Callable[[Path, str, HardwareProfile], Iterator[Call]]


def main(data: Path, only: list[str]) -> None:
    """Prints one row for each operator and GPU: calls, median and 90th percentile of the absolute error in %."""
    print(f"{'operator':22}{'GPU':12}{'calls':>7}{'median %':>10}{'P90 %':>8}{'bias %':>8}{'roofline median %':>19}")
    for operator, calls in OPERATORS.items():
        for name, profile in GPUS.items():
            if not only or name in only:
                gpu = load_gpu(profile)
                _print_row(operator, name, gpu, list(calls(data, name, gpu)))


def _print_row(operator: str, name: str, gpu: HardwareProfile, calls: list[Call]) -> None:
    if not calls:
        return
    measured = np.array([call.measured_s for call in calls])
    error = 100 * (np.array([call.predict_s(gpu) for call in calls]) / measured - 1)
    plain = 100 * abs(np.array([call.roofline_s for call in calls]) / measured - 1)
    median, p90 = np.percentile(abs(error), [50, 90])
    row = f"{operator:22}{name:12}{len(calls):7}{median:10.1f}{p90:8.1f}{np.median(error):8.1f}{np.median(plain):19.1f}"
    print(row)


def rows_of(data: Path, table: str, gpu: str) -> pd.DataFrame:
    """The table's rows of that GPU from the source its parameters were fitted on, with a cold L2.

    Decode attention keeps warm rows of little KV: they are the short calls that show what a launch costs.
    """
    rows = pd.read_csv(data / f"{table}.csv.gz")
    source = "LLMServingSim" if gpu == "RTX4090" else "aiconfigurator"
    if table == "attention_mixed":
        return rows[rows["gpu"] == gpu]
    rows = rows[(rows["gpu"] == gpu) & rows["source"].str.startswith(source)] if "source" in rows else rows
    if table == "attention_decode":
        kv_bytes = 4 * rows["b"] * rows["ctx"] * rows["hkv"] * rows["hd"]
        return rows[(rows["l2_warm"] == 0) | (kv_bytes <= LITTLE_KV_BYTES)]
    return rows[rows["l2_warm"] == 0] if "l2_warm" in rows else rows


def _rows(rows: pd.DataFrame) -> Iterator[Any]:
    """The table's rows, each with its columns as attributes."""
    return iter(rows.itertuples())


def _gemm(dtype: str) -> Calls:
    def calls(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
        rows, weight = rows_of(data, "gemm", name), FORMATS[dtype]
        if weight.compute not in gpu.peak_flops:
            return
        for row in _rows(rows[rows["dtype"] == dtype]):
            linear = Linear("gemm", int(row.k), int(row.n), "replicated", weight=weight)
            moved = linear.num_bytes + row.m * row.k * weight.bits / 8 + ACTIVATION_BYTES * row.m * row.n
            plain_s = _roofline_s(gpu, 2.0 * row.m * row.n * row.k, moved, weight)
            yield Call(f"{row.n}x{row.k}", row.time_us * US, _of(gemm_s, float(row.m), linear), plain_s)

    return calls


def _of(operator: Callable[..., float], *arguments: object) -> Callable[[HardwareProfile], float]:
    return lambda gpu: operator(*arguments, gpu)


def _decode(kv_cache_dtype: str) -> Calls:
    def calls(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
        rows, kv_bytes = rows_of(data, "attention_decode", name), KV_BYTES[kv_cache_dtype]
        for row in _rows(rows[(rows["kv_cache_dtype"] == kv_cache_dtype) & (rows["hd"] == 128)]):
            attention = Attention("full", int(row.hq), int(row.hkv), int(row.hd), int(row.hd))
            context_tokens = float(row.b * row.ctx)
            plain_s = _roofline_s(gpu, 0.0, context_tokens * attention.kv_numbers_per_token * kv_bytes)
            predict = _of(_decode_s, row.b, attention, kv_bytes, context_tokens)
            yield Call(f"{row.hq}/{row.hkv}/{row.ctx}", row.time_us * US, predict, plain_s)

    return calls


def _decode_s(num: float, attention: Attention, kv_bytes: float, context_tokens: float, gpu: HardwareProfile) -> float:
    work = decode_attention(num, attention, kv_bytes, gpu)
    return work.fixed_s + decode_attention_s(work, context_tokens)


def _prefill(kv_cache_dtype: str) -> Calls:
    def calls(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
        rows, kv_bytes = rows_of(data, "attention_prefill", name), KV_BYTES[kv_cache_dtype]
        for row in _rows(rows[rows["kv_cache_dtype"] == kv_cache_dtype]):
            attention = Attention("full", int(row.hq), int(row.hkv), int(row.hd), int(row.hd))
            chunks = ((row.q, row.kv_prev),) * row.b
            moved_bytes = row.b * (2.0 * row.q * row.hq + kv_bytes * (row.q + row.kv_prev) * row.hkv) * 2 * row.hd
            flops = 4.0 * row.b * row.hq * row.hd * row.q * (row.kv_prev + row.q / 2)
            predict = _of(_prefill_s, chunks, attention, kv_bytes)
            shape = f"{row.hq}/{row.hkv}/{row.hd}/{row.q}"
            yield Call(shape, row.time_us * US, predict, _roofline_s(gpu, flops, moved_bytes))

    return calls


def _prefill_s(
    chunks: tuple[tuple[int, int], ...], attention: Attention, kv_bytes: float, gpu: HardwareProfile
) -> float:
    fit = prefill_fit(attention, kv_bytes, gpu)
    work = prefill_work(prefill_attention(attention, kv_bytes, fit), chunks)
    return fit.launch_s + prefill_attention_s(work, prefill_speed(fit, gpu))


def _mixed(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
    for row in _rows(rows_of(data, "attention_mixed", name)):
        attention = Attention("full", int(row.hq), int(row.hkv), int(row.hd), int(row.hd))
        chunk = (int(row.prefill_chunk), int(row.kv_prefill))
        decodes = (int(row.n_decode), float(row.n_decode * row.kv_decode))
        fit = gpu.operators.prefill_attention
        flops, _, moved_bytes = prefill_work(prefill_attention(attention, 2.0, fit), (chunk,))
        moved = moved_bytes + decodes[1] * attention.kv_numbers_per_token * 2.0
        plain_s = _roofline_s(gpu, flops, moved)
        yield Call(
            f"{row.prefill_chunk}/{row.kv_prefill}",
            row.time_us * US,
            _of(_mixed_s, chunk, attention, *decodes),
            plain_s,
        )


def _mixed_s(
    chunk: tuple[int, int], attention: Attention, num_decodes: int, context_tokens: float, gpu: HardwareProfile
) -> float:
    launch_s = gpu.operators.prefill_attention.launch_s
    return launch_s + mixed_attention_s((chunk,), num_decodes, context_tokens, attention, 2.0, gpu)


def _experts(moe_dtype: str, weight: WeightFormat) -> Calls:
    def calls(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
        rows = rows_of(data, "moe", name)
        chosen = (rows["moe_dtype"] == moe_dtype) & (rows["moe_ep_size"] == 1) & is_told(rows)
        chosen &= rows["moe_tp_size"] <= MOST_SLICES
        if weight.compute not in gpu.peak_flops:
            return
        for row in _rows(rows[chosen]):
            whose = () if name == "A100" else (int(row.num_experts), int(row.topk), int(row.hidden_size))
            if whose == HALF_OF_THEM:
                continue
            per_gpu, num_matrices = int(row.inter_size // row.moe_tp_size), 2 if whose in TWO_MATRICES else 3
            experts = Experts(
                int(row.num_experts),
                int(row.topk),
                int(row.hidden_size),
                per_gpu,
                weight=weight,
                num_matrices=num_matrices,
            )
            load = table_load(int(row.num_tokens), experts, row.distribution)
            read = load.distinct * experts.num_weights_per_expert * weight.bits / 8
            plain_s = _roofline_s(gpu, 2 * load.routed * experts.num_weights_per_expert, read, weight)
            shape = f"{row.num_experts}/{row.topk}/{row.hidden_size}/{per_gpu}"
            yield Call(shape, row.time_us * US, _experts_of(load, experts), plain_s)

    return calls


def _experts_of(load: ExpertsLoad, experts: Experts) -> Callable[[HardwareProfile], float]:
    return lambda gpu: routed_experts(load, experts, gpu).seconds


def _all_reduce(data: Path, name: str, gpu: HardwareProfile) -> Iterator[Call]:
    rows = rows_of(data, "allreduce", name)
    for row in _rows(rows[(rows["backend"] == "vllm_graph") & (rows["message_bytes"] <= LARGEST_MESSAGE)]):
        num_gpus, message_bytes = int(row.num_gpus), float(row.message_bytes)
        plain_s = 2 * (num_gpus - 1) / num_gpus * message_bytes / gpu.all_reduce_bytes_per_s(num_gpus)
        predict = _of(all_reduce_s, message_bytes, num_gpus)
        yield Call(str(num_gpus), row.time_us * US, predict, plain_s, size=message_bytes)


def _roofline_s(gpu: HardwareProfile, flops: float, moved_bytes: float, weight: WeightFormat | None = None) -> float:
    peak = gpu.peak_flops[weight.compute if weight else "bf16"]
    return max(flops / peak, moved_bytes / gpu.memory_bandwidth_bytes_per_s)


OPERATORS: dict[str, Calls] = {
    "gemm bf16": _gemm("bfloat16"),
    "gemm fp8": _gemm("fp8"),
    "gemm fp8_block": _gemm("fp8_block"),
    "gemm nvfp4": _gemm("nvfp4"),
    "decode attention": _decode("bfloat16"),
    "decode attention fp8": _decode("fp8"),
    "prefill attention": _prefill("bfloat16"),
    "prefill attention fp8": _prefill("fp8"),
    "mixed attention": _mixed,
    "experts bf16": _experts("bfloat16", FORMATS["bfloat16"]),
    "experts fp8_block": _experts("fp8_block", FORMATS["fp8_block"]),
    "experts nvfp4": _experts("nvfp4", FORMATS["nvfp4"]),
    "experts int4": _experts("int4_wo", FORMATS["int4"]),
    "all-reduce": _all_reduce,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
