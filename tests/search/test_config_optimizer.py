"""The autotuning design's optimizer and cluster: its names, its grid and scores, and the simulation that it lacks."""

from typing import Any

import pytest

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.specs.autotuning import AutotuningParameters

H100S = sim.ClusterSpec("h100-sxm", 8)
CHATBOT = sim.WorkloadProfile.create_synthetic("chatbot", requests_per_second=5, latency_budget_ms=150)
BATCHES = sim.WorkloadProfile.create_synthetic("batch_inference", requests_per_second=2)
SMALL: dict[str, list[Any]] = {
    "gpu_memory_utilization": [0.8, 0.9],
    "cudagraph_capture_sizes": [[], [1, 2, 4]],
    "max_model_len": [2048],
}


def optimizer(model: str = "Llama-3.1-8B", **parameters: Any) -> sim.vLLMConfigOptimizer:
    return sim.vLLMConfigOptimizer(model, H100S, AutotuningParameters(**parameters))


def test_the_default_space_is_the_designs() -> None:
    """Five utilisations, no graphs and three lists of sizes, lengths that hold 99 % of the sequences; fp8 for throughput."""
    space = optimizer().get_default_search_space(CHATBOT)
    assert space["gpu_memory_utilization"] == [0.8, 0.85, 0.90, 0.95, 0.98]
    assert space["cudagraph_capture_sizes"] == [[], [1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 8]]
    assert (space["max_model_len"], space["kv_cache_dtype"]) == ([2048, 4096, 8192, 16384], ["auto"])
    assert optimizer().get_default_search_space(BATCHES)["kv_cache_dtype"] == ["auto", "fp8_e4m3"]


def test_configs_are_all_combinations_in_the_order_of_the_grid() -> None:
    """As itertools.product has it in the design."""
    found = list(optimizer().generate_configs(SMALL))
    assert len(found) == 4
    assert found[1] == {"gpu_memory_utilization": 0.8, "cudagraph_capture_sizes": [1, 2, 4], "max_model_len": 2048}


def test_the_best_score_that_keeps_the_budget_is_the_answer() -> None:
    """All feasible configurations have their scores; the best one, simulated, answers chat within 150 ms."""
    chosen = optimizer()
    found = chosen.search_optimal_config(CHATBOT, SMALL)
    scores = [score for _, score in found["all_evaluated_configs"]]
    assert len(scores) == 4
    assert found["performance_score"] == max(scores) == chosen.evaluate_config(found["optimal_config"], CHATBOT)
    assert found["predictions"] == chosen.get_config_predictions(found["optimal_config"], CHATBOT)
    assert found["memory_breakdown"] == found["optimal_config"].calculate_memory_breakdown()
    assert found["optimal_config"].cudagraph_capture_sizes == (1, 2, 4)
    simulated = found["simulated"]
    assert simulated["meets_latency_budget"]
    assert simulated["p99_ttft_ms"] <= CHATBOT.latency_budget_ms
    assert "--cudagraph-capture-sizes 1 2 4" in simulated["serve_command"]


def test_a_budget_that_the_best_score_breaks_takes_another() -> None:
    """Formulas prefer captured batches; with the budget between both P99s the one without graphs, or its reverse, is ruled out."""
    chosen = optimizer()
    configs = [chosen.config(params) for params in chosen.generate_configs(SMALL)]
    late = {config.cudagraph_capture_sizes: chosen.simulate(config, CHATBOT)["p99_ttft_ms"] for config in configs}
    assert late[(1, 2, 4)] != late[()]
    quick, slow = sorted(late, key=lambda sizes: late[sizes])
    between = sim.WorkloadProfile.create_synthetic("chatbot", 5, latency_budget_ms=(late[quick] + late[slow]) / 2)
    found = chosen.search_optimal_config(between, SMALL)
    assert found["optimal_config"].cudagraph_capture_sizes == quick
    never = chosen.search_optimal_config(sim.WorkloadProfile.create_synthetic("chatbot", 5, latency_budget_ms=1), SMALL)
    assert not never["simulated"]["meets_latency_budget"]
    assert never["optimal_config"].cudagraph_capture_sizes == quick


def test_a_cluster_cuts_the_model_and_counts_its_instances() -> None:
    """70 B on 4 GPUs an instance: a quarter of the weights on each, where the design counts all of them and finds nothing."""
    found = sim.optimize_vllm_config_for_cluster("Llama-3.1-70B", H100S, BATCHES, {"tp": 4, "pp": 1, "dp": 2})
    predictions, config = found["cluster_predictions"], found["vllm_config"]
    assert predictions["instances_per_cluster"] == 2
    assert predictions["total_throughput"] == 2 * config.calculate_effective_batch_size()
    whole = optimizer("Llama-3.1-70B").config({"max_model_len": 4096})
    assert config.model_memory_gb == pytest.approx(whole.model_memory_gb / 4)
    assert not whole.is_feasible_config()
    assert found["parallelism_strategy"] == {"tp": 4, "pp": 1, "dp": 2}
    assert found["simulated"]["feasible"]
    assert "--tensor-parallel-size 4" in found["simulated"]["serve_command"]


def test_recommendations_are_the_designs_and_what_simulation_found() -> None:
    """Little room for the cache, sizes that no batch has, and a budget of 1 ms."""
    chosen = optimizer(low_kv_cache_ratio=0.99)
    hurried = sim.WorkloadProfile(5, {3: 1.0}, {512: 1.0}, "latency", 1)
    found = chosen.search_optimal_config(hurried, SMALL)
    said = sim.generate_deployment_recommendations(found, {"tp": 1})
    assert said[:2] == [
        "Consider reducing CUDA graph capture sizes to free more memory for KV cache",
        "Low CUDA graph coverage - consider adjusting capture sizes for your workload",
    ]
    assert said[2].startswith("Simulated on tp 1, P99 TTFT is ")
    assert sim.generate_deployment_recommendations(optimizer().search_optimal_config(CHATBOT, SMALL), {}) == []


@pytest.mark.parametrize(
    ("strategy", "said"),
    [({"tp": 4, "dp": 4}, "take 16 GPUs, and the cluster has 8"), ({"tp": 0}, "got tp 0"), ({"ep": 2}, "got ep 2")],
)
def test_a_strategy_that_cannot_be_is_refused(strategy: dict[str, int], said: str) -> None:
    """With what was got."""
    with pytest.raises(ConfigError, match=said):
        sim.optimize_vllm_config_for_cluster("Llama-3.1-8B", H100S, CHATBOT, strategy)


def test_what_the_design_does_not_search_is_refused() -> None:
    """Its four knobs are named; a model that its formulas find no room for is a sentence."""
    with pytest.raises(
        ConfigError, match=r"the design searches gpu_memory_utilization, .* got 'max_model_length'. Did you mean"
    ):
        optimizer().search_optimal_config(CHATBOT, {"max_model_length": [2048]})
    with pytest.raises(DoesNotFitError, match=r"none of 4 configurations of meta-llama/Llama-3.1-70B is feasible"):
        optimizer("Llama-3.1-70B").search_optimal_config(CHATBOT, SMALL)


def test_capture_sizes_of_a_release_are_its_own() -> None:
    """Multiples of 16 from 256 on, where the design has every eighth; its v0 and v1 differ in what the limit means alone."""
    assert sim.get_vllm_default_capture_sizes(512, "v0") == sim.get_vllm_default_capture_sizes(512)
    newest = sim.get_vllm_default_capture_sizes(512, vllm_version="0.33.0")
    assert newest[:4] == [1, 2, 4, 8]
    assert newest[-2:] == [496, 512]
    assert set(newest) < set(sim.get_vllm_default_capture_sizes(512))
    with pytest.raises(sim.SimError, match="v2"):
        sim.get_vllm_default_capture_sizes(512, vllm_version="v2")
