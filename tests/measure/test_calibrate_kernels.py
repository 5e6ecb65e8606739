"""A layer profile made of known kernels is fitted back to them, and carries over to ranks that the fit has not seen."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sim.errors import ConfigError, ProfileError, RunsError
from sim.measure.calibrate_kernels import KernelCalibration, calibrate_kernels
from sim.measure.layer_profiles import read_layer_profile
from sim.measure.runs import read_runs
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.models import load_model
from sim.steptime.operators import between, decode_attention, decode_attention_s, elementwise_s, gemm_s
from sim.steptime.prefill import mixed_attention_s, prefill_attention, prefill_attention_s, prefill_speed, prefill_work
from tests.measure.makers import make_run
from tests.shared import SHARED, needs_shared

LLAMA = load_model("Llama-3.1-8B")
SWITCH = {16: 1.0, 32: 1.2, 64: 1.2, 128: 1.0}  # as if another kernel were chosen for 32 and 64 rows
ROWS = (1, 4, 16, 32, 64, 128, 512, 2048)
NORM_BYTES, ROPE_BYTES, ACTIVATION_BYTES = 4 * 2 * 4096, 2 * 2 * (32 + 8) * 128, 2 * 3 * 14336


def slower() -> HardwareProfile:
    """An RTX 4090 with nine tenths of its bandwidth in GEMMs and 5 ns a tile without queries."""
    gpu = load_gpu("rtx-4090")
    gemm = replace(gpu.operators.gemm["bf16"], memory_efficiency=0.8, compute_efficiency=0.9, launch_s=4e-6)
    prefill = replace(gpu.operators.prefill_attention, decode_rows=40.0, decode_wave_s=4e-6, idle_tile_s=5e-9)
    fits = replace(gpu.operators, gemm={**gpu.operators.gemm, "bf16": gemm}, prefill_attention=prefill)
    return replace(gpu, operators=fits)


def write_profile(folder: Path, *sizes: int) -> Path:
    """As a profiler would write it on that GPU."""
    folder.mkdir()
    folder.joinpath("meta.yaml").write_text(
        "gpu: a slow card\nmodel: meta-llama/Llama-3.1-8B\nvllm_version: 0.19.0\nvariant: bf16\nmore: 1\n"
    )
    for size in sizes:
        _write_tables(folder / f"tp{size}", size, slower())
    return folder


def _write_tables(folder: Path, size: int, gpu: HardwareProfile) -> None:
    folder.mkdir()
    layer, head = LLAMA.layers[0].per_rank(size), LLAMA.output_head.per_rank(size)
    dense = [
        (linear.name, rows, SWITCH.get(rows, 1.0) * gemm_s(float(rows), linear, gpu))
        for linear in layer.linears
        for rows in ROWS
    ]
    moved = {
        "layernorm": NORM_BYTES,
        "rotary_emb": ROPE_BYTES // size,
        "act_fn": ACTIVATION_BYTES // size,
        "embedding": 1,
    }
    dense += [
        (name, rows, elementwise_s(float(rows * num_bytes), gpu)) for name, num_bytes in moved.items() for rows in ROWS
    ]
    heads = [("lm_head", rows, gemm_s(float(rows), head, gpu)) for rows in ROWS[:6]] + [("sampler", 1, 1e-3)]
    attention, calls = layer.attention, []
    launch_s, speed = gpu.operators.prefill_attention.launch_s, prefill_speed(gpu.operators.prefill_attention, gpu)
    for num in (1, 4, 16, 64):
        for context in (128, 512, 2048):
            work = decode_attention(num, attention, 2.0, gpu)
            calls.append((0, 0, num, context, work.fixed_s + decode_attention_s(work, float(num * context))))
    for chunk in (64, 256, 1024, 2048):
        for before in (0, 1024, 4096):
            work_of_chunk = prefill_work(
                prefill_attention(attention, 2.0, gpu.operators.prefill_attention), ((chunk, before),)
            )
            calls.append((chunk, before, 0, 0, launch_s + prefill_attention_s(work_of_chunk, speed)))
            for num in (1, 8, 64):
                mixed_s = mixed_attention_s(((chunk, before),), num, num * 512.0, attention, 2.0, gpu)
                calls.append((chunk, before, num, 512, launch_s + mixed_s))
    calls.append((0, 0, 256, 16384, 1e-3))  # no GPU of 24 GB has room for 4 M tokens
    _write(folder / "dense.csv", "layer,tokens,time_us", dense)
    _write(folder / "per_sequence.csv", "layer,sequences,time_us", heads)
    _write(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", calls)


def _write(path: Path, header: str, rows: Sequence[tuple[object, ...]]) -> None:
    lines = [",".join(map(str, (*row[:-1], float(str(row[-1])) * 1e6))) for row in rows]
    path.write_text("\n".join((header, *lines)) + "\n")


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> KernelCalibration:
    return calibrate_kernels(write_profile(tmp_path_factory.mktemp("profile") / "mine", 1, 2), "rtx-4090")


def test_kernels_that_were_put_in_are_found(calibration: KernelCalibration, tmp_path: Path) -> None:
    """Efficiencies, tiles without queries, and where another kernel is chosen; the profile that is written has them."""
    path = tmp_path / "mine.yaml"
    calibration.write(path)
    found, truth = load_gpu(path).operators, slower().operators
    gemm, mixed = found.gemm["bf16"], found.prefill_attention
    assert gemm.memory_efficiency == pytest.approx(0.8, rel=0.05)
    assert mixed.idle_tile_s == pytest.approx(5e-9, rel=0.03)
    assert mixed.decode_rows == pytest.approx(40.0, rel=0.03)
    assert mixed.compute_efficiency == pytest.approx(truth.prefill_attention.compute_efficiency, rel=0.01)
    switch = [between(gemm.by_rows, rows) / between(gemm.by_rows, 16) for rows in (32, 48, 64, 2048)]
    assert switch == pytest.approx([1.2, 1.2, 1.2, 1.0], rel=0.05)
    assert gemm.basis == "fitted"
    assert found.all_reduce == load_gpu("rtx-4090").operators.all_reduce


def test_errors_are_those_of_calls_and_ranks_not_seen(calibration: KernelCalibration) -> None:
    """The base is off where kernels differ; each number of ranks is predicted by the other's; the impossible call counts for nothing."""
    gemm, decode = calibration.operators["gemm bf16"], calibration.operators["decode attention"]
    assert gemm.before.median > 5 > gemm.held_out.median
    assert calibration.operators["mixed attention"].ranks_left_out == pytest.approx(0, abs=0.5)
    assert decode.num_calls == 24
    assert decode.held_out.p90 < 1
    assert calibration.verdict.startswith(
        "fitted to a layer profile of meta-llama/Llama-3.1-8B on a slow card, vLLM 0.19.0"
    )


def test_a_card_is_told_by_three_factors(calibration: KernelCalibration) -> None:
    """Half of what streams has less bandwidth, none has more."""
    assert 0.8 < calibration.card["memory bandwidth"] < 1
    assert calibration.card.keys() == {"compute", "memory bandwidth", "launch"}


def test_what_is_no_profile_is_one_sentence(tmp_path: Path) -> None:
    """Which names the file and the column."""
    with pytest.raises(ProfileError, match=r"must hold one meta.yaml.* got 0"):
        read_layer_profile(tmp_path)
    folder = write_profile(tmp_path / "mine", 1)
    table = folder / "tp1/dense.csv"
    table.write_text(table.read_text().replace("tokens", "token"))
    with pytest.raises(ProfileError, match=r"dense.csv: the column tokens is required but absent"):
        read_layer_profile(folder)
    table.write_text("layer,tokens,time_us\no_proj,1,-2\n")
    with pytest.raises(ProfileError, match="time_us must hold numbers of at least 1e-06"):
        read_layer_profile(folder)
    table.unlink()
    with pytest.raises(ProfileError, match=r"dense.csv or dense.csv.gz is required but absent"):
        read_layer_profile(folder)
    meta = folder / "meta.yaml"
    meta.write_text(meta.read_text().replace("bf16", "fp8"))
    with pytest.raises(ProfileError, match="`variant` must be bf16, got 'fp8'"):
        read_layer_profile(folder)
    meta.write_text("gpu: 4090\n")
    with pytest.raises(ProfileError, match="`gpu` must be a text, got 4090"):
        read_layer_profile(folder)


def test_runs_are_those_of_the_gpu(tmp_path: Path) -> None:
    """A run measured on another says nothing."""
    with pytest.raises(RunsError, match="none of the 1 runs was measured on rtx-4090"):
        calibrate_kernels(write_profile(tmp_path / "mine", 1), "rtx-4090", [make_run(tmp_path)])


@needs_shared
@pytest.mark.parametrize(
    ("folder", "gpu", "run"),
    [
        ("RTX4090_Llama-3.1-8B", "rtx-4090", "sg-rtx4090_llama-3.1-8b"),
        ("RTXPRO6000_Llama-3.1-8B", "rtx-pro-6000", "sg-rtxpro6000_llama-3.1-8b"),
    ],
)
def test_a_profile_of_the_card_predicts_its_served_run(folder: str, gpu: str, run: str) -> None:
    """Within 2 % in time per token and end to end, 4 % in time to first token, though nothing was fitted to it."""
    runs = [one for one in read_runs(SHARED / "measured/serving.json") if one.id == run]
    figures = calibrate_kernels(SHARED / "steptime/profiles" / folder, gpu, runs).compared[run]
    for name, most in (("tpot_mean", 0.02), ("e2el_mean", 0.02), ("ttft_mean", 0.04)):
        assert figures[name].fitted == pytest.approx(figures[name].measured, rel=most), name


def test_a_folder_that_cannot_be_written_is_said(calibration: KernelCalibration, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        calibration.write(tmp_path / "absent" / "mine.yaml")
