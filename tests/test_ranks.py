"""`--data-parallel-size`: one server's engines behind vLLM's balancer, which step together where they share experts."""

from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.memory.transfers import copied_bytes_per_s
from sim.specs.serve_command import parse_serve_command, serve_command
from sim.steptime.linear import LinearStepTime
from tests.workload.makers import make_trace

TRACE = make_trace([0.1 * number for number in range(40)], prompt_tokens=[500] * 40, output_tokens=[50] * 40)
LOPSIDED = make_trace([0.0, 0.0, 60.0], prompt_tokens=[4000, 10, 10], output_tokens=[2, 400, 5])
MOE, DENSE = "Qwen3-30B-A3B", "Llama-3.1-8B"


def served(**arguments: Any) -> sim.EngineConfig:
    return sim.EngineConfig(max_model_len=8192, **arguments)


def ran(trace: Any = TRACE, model: str = MOE, **arguments: Any) -> sim.Result:
    return sim.simulate(model, "h100-sxm", trace, engine=served(**arguments), intervals=False)


def test_engines_of_a_server_are_replicas_behind_its_balancer() -> None:
    """Request for request, and as many GPUs."""
    ranks = ran(model=DENSE, data_parallel_size=4)
    replicas = sim.simulate(DENSE, "h100-sxm", TRACE, engine=served(), replicas=4, router="vllm_dp", intervals=False)
    assert ranks.requests.equals(replicas.requests)
    assert ranks.summary["fleet"]["router"] == "vllm_dp"
    assert ranks.summary["cost_usd"] == replicas.summary["cost_usd"]
    assert "dummy_step_share" not in ranks.summary
    assert (
        serve_command("M", served(data_parallel_size=4)) == "vllm serve M --data-parallel-size 4 --max-model-len 8192"
    )


def test_ranks_with_experts_wait_for_the_slowest() -> None:
    """Beside a long prompt a short answer takes as long; an idle rank runs dummies until all look, at the 16th step of a wave."""
    found = ran(LOPSIDED, data_parallel_size=2, enable_expert_parallel=True)
    steps = found.steps
    first = {rank: steps[steps["replica"] == rank].iloc[0] for rank in (0, 1)}
    assert first[0]["end_s"] == first[1]["end_s"]
    assert [first[rank]["num_chunk_tokens"] for rank in (0, 1)] == [4000, 10]
    parts = steps[["prefill_s", "decode_s", "host_s"]]
    assert (parts >= 0).all(axis=None)
    assert parts.sum(axis=1).tolist() == pytest.approx((steps["end_s"] - steps["start_s"]).tolist())
    summary = found.summary
    assert summary["num_waves"] == 2
    assert summary["num_lock_steps"] % 16 == 0
    assert 0.4 < summary["dummy_step_share"] < 0.6
    assert 0 < summary["rank_waiting_share"] < summary["dummy_step_share"]
    assert 0 < summary["rank_padding_share"] < 0.2  # beside a prompt without a graph nobody pads; a dummy is one token
    text = str(found)
    assert f"Dummy steps of ranks (%):{summary['dummy_step_share'] * 100:>22.2f}".split() == next(
        line.split() for line in text.splitlines() if line.startswith("Dummy steps")
    )


def test_ranks_on_several_nodes_were_never_measured() -> None:
    """The forecast says so."""
    assert "ranks in lock step over several nodes" in str(ran(data_parallel_size=16).summary["confidence"])


def test_given_step_times_know_of_no_other_rank() -> None:
    """The step of all takes what the longest takes by itself."""
    linear = LinearStepTime(base_s=0.01, per_token_s=1e-4, per_context_token_s=0.0)
    found = sim.simulate(
        MOE,
        "h100-sxm",
        make_trace([0.0, 0.0], prompt_tokens=[100, 300], output_tokens=[2, 2]),
        engine=served(data_parallel_size=2, async_scheduling=False),
        step_time_model=linear,
        intervals=False,
    )
    assert found.requests["first_token_s"].tolist() == pytest.approx([0.04, 0.04])
    assert found.requests["finish_s"].tolist() == pytest.approx([0.0501, 0.0501])


@pytest.mark.parametrize("more", [{}, {"async_scheduling": False}, {"enable_expert_parallel": True}])
def test_stages_of_ranks_in_lock_step(more: dict[str, Any]) -> None:
    """Four GPUs, each with a quarter of the experts: room for more KV; bubbles, in which dummies run as well, and waiting."""
    found = ran(pipeline_parallel_size=2, data_parallel_size=2, **more)
    summary, stages = found.summary, ran(pipeline_parallel_size=2, **more).summary
    assert summary["gpu_hours"] == pytest.approx(4 * summary["duration"] / 3600)
    assert summary["completed"] == len(TRACE)
    assert summary["num_gpu_blocks"] > stages["num_gpu_blocks"]
    assert 0 < summary["dummy_step_share"] < 1
    assert len(summary["stage_bubble_shares"]) == 2
    assert stages["pipeline_bubble_share"] < summary["pipeline_bubble_share"] < 1
    parts = found.steps[["prefill_s", "decode_s", "host_s"]]
    assert (parts >= 0).all(axis=None)
    assert parts.sum(axis=1).tolist() == pytest.approx((found.steps["end_s"] - found.steps["start_s"]).tolist())
    assert "Pipeline bubbles" in str(found)
    assert "pipeline stages over ranks in lock step" in str(summary["confidence"])


def test_given_step_times_are_shared_out_to_stages() -> None:
    """Of two stages each half; the longest prompt counts on both."""
    linear = LinearStepTime(base_s=0.01, per_token_s=1e-4, per_context_token_s=0.0)
    found = sim.simulate(
        MOE,
        "h100-sxm",
        make_trace([0.0, 0.0], prompt_tokens=[100, 300], output_tokens=[1, 1]),
        engine=served(data_parallel_size=2, pipeline_parallel_size=2),
        step_time_model=linear,
        intervals=False,
    )
    assert found.requests["first_token_s"].tolist() == pytest.approx([0.04, 0.04], rel=0.01)  # and a message
    assert found.summary["rank_waiting_share"] > 0


def test_steps_are_logged_rank_by_rank() -> None:
    """Each step of a wave has a row a rank, dummies too."""
    rows: list[dict[str, Any]] = []
    engine = served(data_parallel_size=2)
    found = sim.simulate(MOE, "h100-sxm", LOPSIDED, engine=engine, intervals=False, step_log=rows.append)
    assert len(rows) == 2 * found.summary["num_lock_steps"]
    assert {row["rank"] for row in rows} == {0, 1}
    assert len({(row["wave"], row["step"], row["rank"]) for row in rows}) == len(rows)


def test_prompts_come_in_every_so_many_th_step() -> None:
    """Decodes are disturbed in fewer steps, and prompts wait."""
    often, seldom = (
        ran(data_parallel_size=2, enable_expert_parallel=True, prefill_schedule_interval=interval)
        for interval in (1, 8)
    )
    prefilling = [(found.steps["num_chunk_tokens"] > 0).mean() for found in (often, seldom)]
    assert seldom.summary["mean_ttft_ms"] > often.summary["mean_ttft_ms"]
    assert prefilling[1] <= prefilling[0]


def test_an_engine_by_itself_waits_from_prompt_to_prompt() -> None:
    """Three steps decode alone behind each that has a prompt's tokens; a server's dense engines count each for itself, as replicas do."""
    linear = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)
    trace = make_trace([0.0, 0.5, 4.5, 20.0], prompt_tokens=[100] * 4, output_tokens=[15, 2, 9, 2])
    engine = served(prefill_schedule_interval=4, async_scheduling=False)
    found = sim.simulate(DENSE, "h100-sxm", trace, engine=engine, step_time_model=linear, intervals=False)
    assert found.requests["first_scheduled_s"].tolist() == pytest.approx([0.0, 4.0, 8.0, 20.0])
    ranks = ran(model=DENSE, data_parallel_size=2, prefill_schedule_interval=8)
    replicas = sim.simulate(
        DENSE,
        "h100-sxm",
        TRACE,
        engine=served(prefill_schedule_interval=8),
        replicas=2,
        router="vllm_dp",
        intervals=False,
    )
    assert ranks.requests.equals(replicas.requests)
    assert not ranks.requests.equals(ran(model=DENSE, data_parallel_size=2).requests)


@pytest.mark.parametrize("arguments", [{"cpu_offload_gb": 4}, {"offload_group_size": 6, "offload_prefetch_step": 2}])
def test_every_rank_keeps_weights_in_host_memory(arguments: dict[str, Any]) -> None:
    """A step waits for the link whoever has work, dummies too; what leaves a GPU is room for its rank's KV."""
    plain, less = (ran(LOPSIDED, data_parallel_size=2, **more) for more in ({}, arguments))
    moved_bytes = plain.deployment.plan.weights_bytes - less.deployment.plan.weights_bytes
    assert less.summary["num_gpu_blocks"] > plain.summary["num_gpu_blocks"]
    assert moved_bytes > 3.8e9
    steps = less.steps[less.steps["num_chunk_tokens"] == 0]
    assert set(steps["bound"]) == {"link"}
    least_s = moved_bytes / copied_bytes_per_s(less.deployment.gpu) if "offload_group_size" in arguments else 0.015
    assert (steps["end_s"] - steps["start_s"]).min() > least_s
    assert less.summary["num_waves"] == plain.summary["num_waves"]
    parts = steps["prefill_s"] + steps["decode_s"] + steps["host_s"]
    assert parts.tolist() == pytest.approx((steps["end_s"] - steps["start_s"]).tolist())


def split(trace: Any = TRACE, **arguments: Any) -> sim.Result:
    return ran(
        trace, data_parallel_size=2, enable_expert_parallel=True, all2all_backend="deepep_low_latency", **arguments
    )


def test_steps_below_the_thresholds_are_not_split() -> None:
    """They are those of ranks without dual-batch overlap."""
    whole = split()
    found = split(enable_dbo=True, dbo_decode_token_threshold=1000, dbo_prefill_token_threshold=5000)
    assert found.requests.equals(whole.requests)
    assert found.steps.equals(whole.steps)
    assert found.summary["microbatched_step_share"] == 0
    assert "microbatched_step_share" not in whole.summary


def test_steps_above_the_thresholds_are_split() -> None:
    """On one node that takes longer; the table says how many, and the forecast that nothing like it was measured."""
    whole, found = split(), split(enable_dbo=True, dbo_decode_token_threshold=2, dbo_prefill_token_threshold=2)
    share = found.summary["microbatched_step_share"]
    assert share > 0.5
    assert found.summary["mean_tpot_ms"] > whole.summary["mean_tpot_ms"]
    assert f"Steps in two micro-batches (%):{share * 100:>16.2f}".split() in [
        line.split() for line in str(found).splitlines()
    ]
    assert "dual-batch overlap" in found.summary["confidence"]["text"]


def test_one_rank_with_little_to_do_keeps_all_from_splitting() -> None:
    """The other's prompt of 4,000 tokens is computed as a whole; decodes of 32 requests and more lose their graph, which is of two halves."""
    found, whole = split(LOPSIDED, enable_dbo=True), split(LOPSIDED)
    assert found.summary["microbatched_step_share"] == 0
    assert found.requests.equals(whole.requests)
    crowd = make_trace([0.0] * 80, prompt_tokens=[10] * 80, output_tokens=[2, 100] * 40)
    found, whole = split(crowd, enable_dbo=True), split(crowd)
    assert found.summary["mean_tpot_ms"] > 1.2 * whole.summary["mean_tpot_ms"]


def test_a_line_of_vllm_serve_says_it_all() -> None:
    """Read and written; two old names of the default backend are that."""
    line = (
        "vllm serve M --data-parallel-size 8 --enable-expert-parallel --all2all-backend deepep_low_latency --enable-eplb"
        " --eplb-config.num_redundant_experts=32 --enable-dbo --dbo-decode-token-threshold 64 --prefill-schedule-interval 4"
    )
    parsed = parse_serve_command(line)
    assert parsed.engine == sim.EngineConfig(
        data_parallel_size=8,
        enable_expert_parallel=True,
        all2all_backend="deepep_low_latency",
        enable_eplb=True,
        num_redundant_experts=32,
        enable_dbo=True,
        dbo_decode_token_threshold=64,
        prefill_schedule_interval=4,
    )
    assert serve_command("M", parsed.engine) == line
    older = parse_serve_command(
        'vllm serve M -dp 8 -ep --all2all-backend pplx --enable-eplb --eplb-config \'{"num_redundant_experts": 32, "window_size": 9}\''
    )
    assert older.engine.all2all_backend == "allgather_reducescatter"
    assert older.engine.num_redundant_experts == 32
    assert "window_size of --eplb-config changes nothing here." in older.warnings


@pytest.mark.parametrize(
    ("model", "arguments", "more", "message"),
    [
        (
            DENSE,
            {"prefill_schedule_interval": 4},
            {"vllm_version": "0.32.0"},
            "prefill_schedule_interval 4 changes nothing before vLLM 0.33 but for data-parallel ranks",
        ),
        (
            MOE,
            {},
            {"kv_pull": {"kv_recompute_threshold": 200}},
            "kv_pull with data_parallel_size is simulated for the indep",
        ),
        (
            MOE,
            {"pipeline_parallel_size": 2, "enable_lora": True},
            {},
            "enable_lora is not simulated for data-parallel ranks with experts whose layers lie on pipeline stages",
        ),
        (
            MOE,
            {"all2all_backend": "flashinfer_nvlink_one_sided", "tensor_parallel_size": 8},
            {},
            "goes over NVLink, which joins 8 h100-sxm, got 16",
        ),
        (
            MOE,
            {"enable_dbo": True, "enable_expert_parallel": True},
            {},
            "enable_dbo needs all2all_backend deepep_low_latency or .*, got allgather_reducescatter",
        ),
        (
            MOE,
            {"enable_dbo": True, "all2all_backend": "deepep_low_latency"},
            {},
            "enable_dbo computes while tokens .* got no enable_expert_parallel",
        ),
        (
            MOE,
            {"enable_dbo": True, "all2all_backend": "deepep_low_latency", "enable_expert_parallel": True},
            {"step_time_model": LinearStepTime(base_s=0.01, per_token_s=1e-4, per_context_token_s=0.0)},
            "enable_dbo is timed by the roofline",
        ),
        (
            MOE,
            {
                "enable_dbo": True,
                "all2all_backend": "deepep_low_latency",
                "enable_expert_parallel": True,
                "cpu_offload_gb": 2,
            },
            {},
            "enable_dbo computes the layers of two halves by turns, and how that goes with cpu_offload_gb",
        ),
        (
            MOE,
            {"enable_lora": True, "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency"},
            {},
            "enable_lora goes with no all2all_backend deepep_low_latency on data-parallel ranks",
        ),
        (
            MOE,
            {"enable_lora": True, "enable_expert_parallel": True, "tensor_parallel_size": 2},
            {},
            "enable_lora goes with no tensor_parallel_size with enable_expert_parallel",
        ),
        (
            MOE,
            {"enable_lora": True, "enable_expert_parallel": True, "fully_sharded_loras": True},
            {},
            "enable_lora goes with no fully_sharded_loras with enable_expert_parallel",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(
    model: str, arguments: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    """Ranks with more than they were recorded with."""
    engine = served(data_parallel_size=2, **arguments)
    with pytest.raises(ConfigError, match=message):
        sim.simulate(model, "h100-sxm", TRACE, engine=engine, intervals=False, **more)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"all2all_backend": "nixl_ep"}, "all2all_backend must be .*deepep_low_latency.* got 'nixl_ep'"),
        ({"dbo_decode_token_threshold": 1}, "dbo_decode_token_threshold must be an integer of at least 2"),
        ({"enable_eplb": True}, "enable_eplb places whole experts"),
        ({"enable_expert_parallel": True, "enable_eplb": True}, "enable_eplb places experts on several GPUs, got one"),
        ({"enable_expert_parallel": True, "num_redundant_experts": 8}, "are placed by enable_eplb"),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sim.EngineConfig(**arguments)


def test_a_dense_model_has_no_experts_to_share_out() -> None:
    """As vLLM, which does not start."""
    with pytest.raises(ConfigError, match=r"enable_expert_parallel shares out experts, and .*Llama-3.1-8B has none"):
        sim.plan_memory("Llama-3.1-8B", "h100-sxm", engine=sim.EngineConfig(enable_expert_parallel=True))
