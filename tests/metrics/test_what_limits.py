"""What a summary says of a run's limits."""

import pytest

import sim
from sim.metrics.what_limits import p99_ttft_queue_share
from sim.steptime.linear import LinearStepTime
from tests.metrics.makers import Life, make_requests
from tests.workload.makers import make_trace

ONE_SECOND = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)


def test_the_queue_share_is_that_of_the_slowest_first_tokens() -> None:
    """Of a hundred requests the one that waits 9 s of its 10 is all of the slowest hundredth; those unfinished do not count."""
    quick = [Life(first_scheduled_s=0.0, first_token_s=1.0, finish_s=2.0)] * 99
    slow = Life(first_scheduled_s=9.0, first_token_s=10.0, finish_s=11.0)
    unfinished = Life(first_scheduled_s=0.0, first_token_s=50.0)
    assert p99_ttft_queue_share(make_requests(*quick, slow, unfinished)) == pytest.approx(0.9)
    assert p99_ttft_queue_share(make_requests(*quick)) == 0.0
    assert p99_ttft_queue_share(make_requests(Life(rejected="long"))) is None


def test_a_server_of_one_seat_waits_for_max_num_seqs() -> None:
    """Three at once, one at a time, four steps of a second each: for eight of twelve seconds somebody waits for the seat."""
    engine = sim.EngineConfig(max_num_seqs=1, async_scheduling=False)
    trace = make_trace((0.0, 0.0, 0.0))
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, step_time_model=ONE_SECOND).summary["limits"]
    assert found["queued"] == {"token_budget": 0.0, "max_num_seqs": pytest.approx(8 / 12), "kv_space": 0.0}
    assert found["steps"] == {"token_budget": 0.0, "max_num_seqs": 1.0, "kv_space": 0.0}
    assert found["p99_ttft_queue_share"] == pytest.approx(8 / 9)
    assert found["busy"] == {}
    assert found["text"] == "waits for max_num_seqs 67% of the time"


def test_blocks_for_one_request_make_the_others_wait_for_kv_space() -> None:
    """Two blocks of 16 hold one request of 16 prompt and 4 output tokens."""
    engine = sim.EngineConfig(num_gpu_blocks_override=3, max_model_len=32, async_scheduling=False)
    trace = make_trace((0.0, 0.0))
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, step_time_model=ONE_SECOND).summary["limits"]
    assert found["queued"]["kv_space"] > 0.4
    assert found["queued"]["max_num_seqs"] == found["queued"]["token_budget"] == 0.0


def test_who_waits_for_a_static_batch_waits_for_no_space() -> None:
    """Two have come for the first batch; the third finds a seat and blocks free once one of them has ended, and waits for the other."""
    trace = make_trace((0.0, 0.0, 1.5), output_tokens=[2, 6, 2])
    queued = {
        how: sim.simulate(
            "Llama-3.1-8B",
            "h100-sxm",
            trace,
            engine=sim.EngineConfig(max_num_seqs=2, async_scheduling=False, batching=how),
            step_time_model=ONE_SECOND,
        ).summary["limits"]["queued"]
        for how in ("continuous", "static")
    }
    assert queued["static"] == {
        "token_budget": 0.0,
        "max_num_seqs": 0.0,
        "kv_space": 0.0,
        "static_batch": pytest.approx(4 / 8),
    }
    assert "static_batch" not in queued["continuous"]


def test_a_run_that_met_a_cliff_warns_of_it() -> None:
    """Two dozen decodes where 8 are captured."""
    engine = sim.EngineConfig(max_num_seqs=64, max_cudagraph_capture_size=8)
    found = sim.simulate("Qwen3-0.6B", "h100-sxm", make_trace([0.0] * 24, output_tokens=[50] * 24), engine=engine)
    (warning,) = found.summary["limits"]["warnings"]
    assert warning.startswith("CUDA-graph cliff: 49 steps (")


def test_a_run_in_which_nothing_ran_says_so() -> None:
    """All rejected: no step, no share of anything, no failure."""
    trace = make_trace(prompt_tokens=[10**6] * 3)
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace).summary["limits"]
    assert found["queued"] == {"token_budget": 0.0, "max_num_seqs": 0.0, "kv_space": 0.0}
    assert (found["busy"], found["p99_ttft_queue_share"], found["graph_cliffs"]) == ({}, None, [])
    assert found["text"] == "nothing ran"
