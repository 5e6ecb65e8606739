"""Calibration finds factors that were put in, keeps runs out, and calls nothing better that is within noise."""

from pathlib import Path
from typing import Any

import pytest

from sim.errors import ConfigError, RunsError
from sim.measure.bench import Server, read_measured
from sim.measure.calibrate import calibrate
from sim.measure.replay import replay
from sim.measure.runs import Run
from sim.measure.scales import SCALES, profile, scaled
from sim.measure.validate import validate
from sim.specs.hardware import load_gpu, profile_values
from tests.measure.makers import CLOSED_LOOP, make_run
from tests.shared import SHARED, needs_shared

TRUTH = dict.fromkeys(SCALES, 1.0) | {"memory_efficiency": 0.8, "front_end_time": 1.5}
CPU = SHARED / "measured/cpu"
SERVER = Server(
    str(CPU / "model_config.json"),
    "cpu",
    {
        "enforce_eager": True,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 1024,
    },
    "0.32.0",
)


def measured_on(values: dict[str, Any], folder: Path, *concurrencies: int) -> list[Run]:
    """Closed loops as a server with that profile would have been measured."""
    runs = []
    for concurrency in concurrencies:
        workload = CLOSED_LOOP | {"concurrency": concurrency, "num_requests": 2 * concurrency + 8}
        run = make_run(folder, id=f"c{concurrency}", workload=workload)
        found = replay(run, gpu=profile(values)).figures[None]
        figures = {"stage": None, "ttft_ms": {"mean": found["ttft_mean"]}, "tpot_ms": {"mean": found["tpot_mean"]}}
        runs.append(make_run(folder, id=run.id, workload=workload, measured=[figures]))
    return runs


def test_factors_that_were_put_in_are_found(tmp_path: Path) -> None:
    """Five loads of an H100 with 0.8 of its bandwidth and a slower front end: both are found, nothing is off any more."""
    base = profile_values("h100")
    found = calibrate(measured_on(scaled(base, TRUTH), tmp_path, 1, 4, 16, 64, 256), "h100")
    assert found.base == "h100-sxm"
    assert found.scales["memory_efficiency"] == pytest.approx(0.8, rel=0.01)
    assert found.scales["front_end_time"] == pytest.approx(1.5, rel=0.01)
    assert found.errors["before"]["tpot_mean"] > 10
    assert found.errors["fitted"]["tpot_mean"] < 1
    assert found.errors["held_out"]["tpot_mean"] < 3
    assert found.verdict.startswith("better")


def test_what_is_right_already_is_not_called_better(tmp_path: Path) -> None:
    """Runs that the profile predicts exactly leave nothing to gain."""
    found = calibrate(measured_on(profile_values("h100"), tmp_path, 2, 8, 32), "h100")
    assert found.verdict.startswith("no improvement")
    assert all(factor == pytest.approx(1, abs=0.01) for factor in found.scales.values())


def test_a_single_run_says_nothing_of_others(tmp_path: Path) -> None:
    """There is none to hold out."""
    found = calibrate(measured_on(scaled(profile_values("h100"), TRUTH), tmp_path, 8), "h100")
    assert found.verdict.startswith("not known")
    assert found.errors["held_out"] == {}


def test_the_profile_says_what_it_was_fitted_on(tmp_path: Path) -> None:
    """It loads as any other, holds the scaled numbers, and names its runs."""
    base = profile_values("h100")
    found = calibrate(measured_on(scaled(base, TRUTH), tmp_path, 4, 16), "h100")
    path = tmp_path / "mine.yaml"
    found.write(path)
    gpu, efficiency = load_gpu(path), load_gpu("h100").operators.decode_attention.memory_efficiency
    factor = found.scales["memory_efficiency"]
    assert gpu.operators.decode_attention.memory_efficiency == pytest.approx(factor * efficiency, rel=1e-3)
    assert profile_values(path)["calibration"]["runs"] == ["c4", "c16"]
    with pytest.raises(ConfigError, match="cannot be written"):
        found.write(tmp_path / "absent" / "mine.yaml")


def test_runs_of_other_gpus_are_no_evidence(tmp_path: Path) -> None:
    """A run on an H100 says nothing of an L4; one that cannot be replayed is an error that names it."""
    with pytest.raises(RunsError, match="none of the 1 runs was measured on l4"):
        calibrate([make_run(tmp_path)], "l4")
    with pytest.raises(RunsError, match="run 'a' cannot be calibrated on: the engine argument"):
        calibrate([make_run(tmp_path, engine={"max_num_seq": 2})], "h100")


@needs_shared
def test_two_loads_of_a_cpu_server_predict_its_others() -> None:
    """Within 15 % in time per token, 20 % in time to first token and 5 % in throughput, saturation apart."""
    calibration = calibrate(bench("c16", "r2.5"), "cpu")
    others = bench("c1", "c4", "c16b", "r1", "r2.5b", "r4", "r4b")
    for result, whole in validate(others, gpu=profile(calibration.values)).replayed:
        assert abs(whole.errors["tpot_mean"]) < 15, result.run.id
        assert abs(whole.errors["ttft_mean"]) < 20, result.run.id
        assert abs(whole.errors["output_throughput"]) < 5, result.run.id


@needs_shared
def test_an_eager_cpu_server_says_more_of_a_compiled_one_with_its_launches() -> None:
    """Loads that keep it busy: throughput within 13 % and time per token within 16 %; 21 and 28 % where both launch alike."""
    calibration = calibrate(bench("c16", "r2.5"), "cpu")
    compiled = SERVER._replace(engine={**SERVER.engine, "enforce_eager": False})
    runs = read_measured([CPU / f"bench_D_{load}.json" for load in ("c4", "c16")], compiled)
    for result, whole in validate(runs, gpu=profile(calibration.values)).replayed:
        assert abs(whole.errors["output_throughput"]) < 13, result.run.id
        assert abs(whole.errors["tpot_mean"]) < 16, result.run.id


def bench(*loads: str) -> tuple[Run, ...]:
    return read_measured([CPU / f"bench_A_{load}.json" for load in loads], SERVER)
