"""The GPU measurements' logic: what would be measured, and that it runs, on a CPU where PyTorch is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.plan import CAPTURE_SIZES, STACKS, pools, stack_named, steps


def test_each_decode_is_measured_eager_and_replayed() -> None:
    """Every stack, context and captured size in both modes."""
    decodes = {(s.stack, s.context_tokens, s.num_decodes, s.mode) for s in steps() if not s.chunk_tokens}
    for stack in STACKS:
        for size in CAPTURE_SIZES:
            assert {(stack.name, 2048, size, mode) for mode in ("eager", "graph")} <= decodes


def test_padded_sizes_stand_beside_exact_ones() -> None:
    """33 decodes as they are, and padded to 64."""
    padded = [step for step in steps() if step.padded_to]
    assert {(step.num_decodes, step.padded_to) for step in padded} == {(3, 4), (33, 64), (129, 256), (200, 256)}
    for step in padded:
        assert step._replace(padded_to=0) in set(steps())
        assert step.num_tokens == step.padded_to


def test_stacks_are_slices_of_real_models() -> None:
    """Eight of 32 layers of Llama-3.1-8B are 3.5 GB; a stack of each kind fits any GPU of 24 GB."""
    assert stack_named("llama-8b").weight_bytes == pytest.approx(8 * 2 * 218.1e6, rel=0.01)
    assert all(stack.weight_bytes < 8e9 for stack in STACKS)
    assert {bool(stack.num_experts) for stack in STACKS} == {True, False}


def test_graph_pools_grow_by_number_and_by_size() -> None:
    """One graph of two sizes, and sets of 4, 9 and 32."""
    assert [len(pool.sizes) for pool in pools()][:5] == [1, 1, 4, 9, 32]


def test_it_says_what_it_would_measure_without_pytorch() -> None:
    """One line a step and a pool."""
    call = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.measure", "--list"], capture_output=True, text=True, check=True
    )
    assert len(call.stdout.splitlines()) == len(list(steps())) + len(list(pools()))


def test_it_runs_on_a_cpu(tmp_path: Path) -> None:
    """Eager steps of tiny stacks, each with a time."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    out = tmp_path / "steps.json"
    command = [sys.executable, "-m", "benchmarks.gpu.measure", str(out), "--device", "cpu", "--quick"]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads(out.read_text(encoding="utf-8"))["steps"]
    assert rows
    assert all(row["median_us"] > 0 and row["mode"] == "eager" for row in rows)
