"""The design's formulas, against its own numbers worked by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.search.analytic.default_space import default_space
from sim.search.analytic.performance_model import (
    calculate_model_memory_from_config,
    estimate_activation_memory_from_config,
    get_vllm_default_capture_sizes,
    vLLMPerformanceModel,
)
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.optimize import optimize
from sim.search.space import Space
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import EngineConfig
from sim.units import GIB
from tests.search.makers import make_runner, make_scenario, make_trace

CONFIG = SimpleNamespace(
    hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
    intermediate_size=14336, torch_dtype="bfloat16",
)  # fmt: skip
CHATBOT = WorkloadProfile.create_synthetic("chatbot")


def performance_model(**changes: object) -> vLLMPerformanceModel:
    facts = {"gpu_memory_utilization": 0.9, "max_model_len": 2048, "cudagraph_capture_sizes": (1, 2, 4)}
    return vLLMPerformanceModel.from_transformers_config(CONFIG, 80.0, **(facts | changes))  # type: ignore[arg-type]


def test_capture_sizes_are_those_that_the_design_lists() -> None:
    """1, 2, 4 and every eighth up to 512."""
    assert get_vllm_default_capture_sizes(32) == [1, 2, 4, 8, 16, 24, 32]
    assert len(get_vllm_default_capture_sizes(10_000)) == 67


def test_model_memory_counts_four_and_two_matrices_a_layer() -> None:
    """V*H + L*(4*H*H + 2*H*I + 2*H) + H parameters of two bytes; of 0.5 bytes when 4 bits are said."""
    num_parameters = 128256 * 4096 + 32 * (4 * 4096**2 + 2 * 4096 * 14336 + 2 * 4096) + 4096
    assert calculate_model_memory_from_config(CONFIG) == pytest.approx(num_parameters * 2 / GIB)
    quantised = SimpleNamespace(**vars(CONFIG), quantization_config={"bits": 4})
    assert calculate_model_memory_from_config(quantised) == pytest.approx(num_parameters * 0.5 / GIB)


def test_activation_memory_is_three_tenths_of_a_layer() -> None:
    """Queries, keys and values, scores, and the MLP, for 32 sequences of 512 tokens."""
    numbers = 3 * 32 * 512 * 4096 + 32 * 32 * 512 * 512 + 32 * 512 * 14336
    found = estimate_activation_memory_from_config(CONFIG, 32, 512, AutotuningParameters())
    assert found == pytest.approx(0.3 * 2 * numbers / GIB)


def test_graphs_take_memory_from_the_cache() -> None:
    """A tenth of the model, and 2 % more of that for each element of the batch; 1.8 times as much in full graphs."""
    found = performance_model()
    breakdown, weights = found.calculate_memory_breakdown(), found.model_memory_gb
    graphs = weights * 0.1 * (1.02 + 1.04 + 1.08)
    assert breakdown["cuda_graph_memory"] == pytest.approx(graphs)
    assert breakdown["kv_cache_memory"] == pytest.approx(72 - weights - found.activation_memory_gb - graphs)
    full = performance_model(tuning_params=AutotuningParameters(compilation_level="FULL"))
    assert full.calculate_memory_breakdown()["cuda_graph_memory"] == pytest.approx(1.8 * graphs)


def test_the_batch_is_what_the_cache_holds_of_the_longest_sequences() -> None:
    """8 heads x 128 x 2 x 2 bytes x 32 layers are 128 KiB a token; an fp8 cache holds twice as many."""
    found = performance_model()
    kv_bytes = found.calculate_memory_breakdown()["kv_cache_memory"] * GIB
    assert found.calculate_effective_batch_size() == int(kv_bytes / (131072 * 2048))
    halved = performance_model(kv_cache_dtype="fp8_e4m3").calculate_effective_batch_size()
    assert halved == int(kv_bytes / (65536 * 2048))


def test_scores_weigh_batch_and_coverage_as_the_design_says() -> None:
    """The chatbot runs batches of 1, 2, 4 and 8, of which three are captured: 90 %."""
    found = performance_model()
    batch = found.calculate_effective_batch_size()
    assert found.calculate_graph_coverage(CHATBOT) == pytest.approx(0.9)
    assert found.evaluate_config(CHATBOT) == pytest.approx(0.9 * 0.8 + batch / 32 * 0.2)
    batches = WorkloadProfile.create_synthetic("batch_inference")
    assert found.evaluate_config(batches) == pytest.approx(batch * 0.7)


def test_a_cache_below_its_least_share_is_infeasible() -> None:
    """5 % of 80 GiB, or one sequence with 5 % on top."""
    assert performance_model().is_feasible_config()
    assert not performance_model(gpu_memory_utilization=0.25).is_feasible_config()
    assert not performance_model(max_model_len=10_000_000).is_feasible_config()


@pytest.mark.parametrize(
    ("name", "rate", "batch", "length", "budget_ms"),
    [("chatbot", 100, 8, 2048, 100), ("batch_inference", 10, 128, 4096, 1000), ("interactive", 50, 2, 1024, 50)],
)
def test_synthetic_workloads_are_the_designs(name: str, rate: float, batch: int, length: int, budget_ms: float) -> None:
    """Their rates, the 95th percentile of batch sizes and of lengths, and their budgets."""
    found = WorkloadProfile.create_synthetic(name)
    assert (found.requests_per_second, found.latency_budget_ms) == (rate, budget_ms)
    assert (found.get_expected_max_batch_size(), found.get_expected_max_sequence_length()) == (batch, length)
    assert WorkloadProfile.create_synthetic(name, 7, 8).requests_per_second == 7


def test_an_unknown_workload_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="Did you mean chatbot"):
        WorkloadProfile.create_synthetic("chatbots")


def test_a_trace_gives_rate_lengths_and_batches() -> None:
    """Three requests of 50 tokens at 20 ms run for a second: the second and third find others running."""
    rows = [{"arrival_s": at_s, "prompt_tokens": 100, "output_tokens": 50} for at_s in (0.0, 0.5, 0.9, 5.0)]
    found = WorkloadProfile.from_trace_analysis(rows)
    assert found.requests_per_second == pytest.approx(3 / 5)
    assert found.batch_size_distribution == {1: 0.5, 2: 0.25, 3: 0.25}
    assert found.sequence_length_distribution == {150: 1.0}
    assert found == WorkloadProfile.from_trace_analysis(list(reversed(rows)))


def test_constants_are_checked() -> None:
    with pytest.raises(ConfigError, match="compilation_level"):
        AutotuningParameters(compilation_level="HALF")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_kv_cache_ratio"):
        AutotuningParameters(min_kv_cache_ratio=-1)


def test_the_default_space_follows_the_workload() -> None:
    """Lengths hold every request, captured sizes reach as far as batches do; what changes answers is not tried."""
    trace = make_trace(100, rate_rps=5.0)
    profile = WorkloadProfile.from_trace_analysis(trace)
    space = default_space(make_scenario(trace), profile, gpus=4)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    assert all(length is None or length >= longest for length in space.knobs["max_model_len"])
    assert space.knobs["gpu_memory_utilization"] == (None, 0.8, 0.85, 0.9, 0.95, 0.98)
    sizes = [sizes for sizes in space.knobs["cudagraph_capture_sizes"] if sizes]
    assert sizes[0] == (1, 2, 4)
    assert max(map(max, sizes)) <= max(4, profile.get_expected_max_batch_size())
    assert space.knobs.keys().isdisjoint({"kv_cache_dtype", "quantization"})
    assert (space.knobs["tensor_parallel_size"], space.knobs["replicas"], space.gpus) == ((1, 2, 4), (1, 2, 3, 4), 4)
    assert np.all(np.diff([value for value in space.knobs["max_num_seqs"] if value]) > 0)


def test_what_the_replay_refuses_stays_among_the_candidates() -> None:
    """To the formulas the shortest context is the best; it holds no request of the trace, which the replay finds out."""
    scenario = make_scenario(base=EngineConfig(cudagraph_capture_sizes=(1, 2, 4)))
    space = Space({"max_model_len": (64, 2048, 4096)})
    found = optimize(scenario, space, make_runner(scenario), trials=10, seed=0, scorer="analytic")
    assert found.verdict.winner.candidate.params == {"max_model_len": 2048}
    assert [(one.params["max_model_len"], one.outcome.is_feasible) for one in found.candidates] == [
        (64, False), (2048, True), (4096, True),
    ]  # fmt: skip
