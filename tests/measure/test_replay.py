"""Replays of measured runs: clocks, stages, and reasons why not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.front_end import FITTED_AT_TOKENS, TOKENIZED_S
from sim.errors import SimError
from sim.measure.replay import replay
from sim.specs.hardware import load_gpu
from tests.measure.makers import CLOSED_LOOP, FIGURES, OPEN_LOOP, make_run
from tests.shared import SHARED, needs_shared


def test_clients_see_tokens_later_than_the_engine(tmp_path: Path) -> None:
    """By the front end's constant, what its tokenizer takes for prompts so long, and a little more for each request that streams; per-token times are the same."""
    client, engine = (replay(make_run(tmp_path, clock=clock)).figures[None] for clock in ("client", "engine"))
    host = load_gpu("h100-sxm").operators.host
    late_s = (client["ttft_mean"] - engine["ttft_mean"]) / 1000
    tokenized_s = TOKENIZED_S * (40 + 60 - FITTED_AT_TOKENS)
    assert 0 < late_s - host.front_end_s - tokenized_s < 10 * host.front_end_request_s
    assert client["e2el_mean"] - engine["e2el_mean"] == pytest.approx(late_s * 1000)
    assert client["tpot_mean"] == pytest.approx(engine["tpot_mean"])


def test_tpot_of_an_open_loop_is_that_of_the_means(tmp_path: Path) -> None:
    """(mean end-to-end latency - mean time to first token) / (20 - 1)."""
    figures = replay(make_run(tmp_path)).figures[None]
    assert figures["tpot_mean"] == pytest.approx((figures["e2el_mean"] - figures["ttft_mean"]) / 19)


def test_stages_are_told_apart(tmp_path: Path) -> None:
    """Twice the rate takes longer a token; the whole lies between."""
    stages: list[dict[str, Any]] = [{**FIGURES, "stage": stage} for stage in (None, 0, 1)]
    figures = replay(make_run(tmp_path, measured=stages)).figures
    slow, fast = figures[0]["tpot_mean"], figures[1]["tpot_mean"]
    assert slow < figures[None]["tpot_mean"] < fast


def test_closed_loops_keep_their_concurrency(tmp_path: Path) -> None:
    """Four clients at 20 requests: never more than four at once, so about a fifth of the makespan each."""
    run = make_run(tmp_path, workload=CLOSED_LOOP, clock="engine")
    figures = replay(run).figures[None]
    mean_running = 20 * figures["e2el_mean"] / 1000 / figures["makespan_s"]
    assert 3.3 < mean_running <= 4.0


def test_greedy_requests_spare_the_sort(tmp_path: Path) -> None:
    """The same run asks for top-p by the server's default, or not."""
    default, greedy = (replay(make_run(tmp_path, sampling=how)).figures[None] for how in ("default", "greedy"))
    assert greedy["tpot_mean"] < default["tpot_mean"] - 0.3


def test_random_tokens_spread_more_evenly_over_experts(tmp_path: Path) -> None:
    """Closed loops send random tokens; open loops repeat a few prompts, whose experts are popular ones."""
    assert make_run(tmp_path, workload=CLOSED_LOOP).spreads == "mild"
    assert make_run(tmp_path).spreads == "skewed"


def test_another_gpu_in_its_place(tmp_path: Path) -> None:
    """A calibrated profile stands in for the one that the run names."""
    gpu = load_gpu("h100-sxm")
    slow = replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s / 2)
    run = make_run(tmp_path)
    assert replay(run, gpu=slow).figures[None]["tpot_mean"] > 1.5 * replay(run).figures[None]["tpot_mean"]


def test_data_parallel_engines_share_out_the_requests(tmp_path: Path) -> None:
    """Two of them have half the batch each."""
    one, two = (replay(make_run(tmp_path, engine={"data_parallel_size": size})).figures[None] for size in (1, 2))
    assert two["tpot_mean"] < one["tpot_mean"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": {"prefill_schedule_interval": 2}}, "prefill_schedule_interval is unknown to vLLM 0.15.1"),
        ({"engine": {"max_num_seq": 2}}, "'max_num_seq' is not simulated. Did you mean max_num_seqs"),
        ({"model": "meta-llama/Llama-3.1-405B"}, "does not start"),
        ({"gpu": "h100-sxmm"}, "is neither a known name"),
        ({"engine": {"max_model_len": 90}}, "none of its requests can run: a prompt of 100 tokens leaves no room"),
        ({"workload": OPEN_LOOP | {"stages": [{"rate_rps": 1e-9, "duration_s": 1.0}]}}, "no request arrives"),
    ],
)
def test_why_a_run_cannot_be_replayed(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """An argument that is not simulated, a model that does not fit, requests that can never run."""
    with pytest.raises(SimError, match=reason):
        replay(make_run(tmp_path, **changes))


@needs_shared
def test_a_served_run_within_five_per_cent() -> None:
    """Llama-2-70B on four H100s at 6 requests/s for 20 minutes: 18.0 ms a token, 55 ms to the first."""
    from sim.measure.runs import read_runs

    run = next(run for run in read_runs(SHARED / "measured/serving.json") if run.id == "ip-7")
    figures, measured = replay(run).figures[None], run.measured[0].figures
    for name in ("tpot_mean", "ttft_mean", "e2el_mean"):
        assert figures[name] == pytest.approx(measured[name], rel=0.05)
