"""The autotuning specification's own code, run as it is printed, beside what stands under its names."""

import re
import typing
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import pytest

import sim
from sim.search.analytic.performance_model import vLLMPerformanceModel
from tests.search.test_analytic import CONFIG
from tests.shared import SHARED, needs_shared

pytestmark = needs_shared
H100S = sim.ClusterSpec("h100-sxm", 8)


@dataclass
class ClusterSpec:
    """Which the document takes from elsewhere."""

    gpu_memory_per_device: float


@pytest.fixture(scope="module")
def printed() -> SimpleNamespace:
    """Everything that its blocks of code define.

    Its search gives its model two arguments that the model does not take; they are set on what it makes, as its comment has it.
    """
    (file,) = (SHARED / "seeds").glob("000_*.txt")
    code = re.findall(r"```python\n(.*?)```", file.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {name: getattr(typing, name) for name in ("Any", "Dict", "Iterator", "List")}
    names |= {"dataclass": dataclass, "ClusterSpec": ClusterSpec}
    names["AutoConfig"] = SimpleNamespace(from_pretrained=lambda _: CONFIG)
    exec("from __future__ import annotations\n" + "\n".join(code[1:]), names)  # noqa: S102 - the document is what is tested
    found = SimpleNamespace(**names)
    as_printed = found.vLLMPerformanceModel.from_transformers_config

    def with_all(*args: Any, **others: Any) -> Any:
        more = {name: others.pop(name) for name in ("cudagraph_capture_sizes", "kv_cache_dtype") if name in others}
        model = as_printed(*args, **others)
        for name, value in more.items():
            setattr(model, name, value)
        return model

    found.as_printed, found.vLLMPerformanceModel.from_transformers_config = as_printed, with_all
    return found


def test_its_search_fails_as_it_is_printed(printed: SimpleNamespace) -> None:
    """What the fixture mends."""
    with pytest.raises(TypeError, match="cudagraph_capture_sizes"):
        printed.as_printed(CONFIG, 80, 0.9, 2048, cudagraph_capture_sizes=[1])


def test_its_constants_and_workloads_are_the_same(printed: SimpleNamespace) -> None:
    """Field by field; here there are more constants."""
    theirs, ours = printed.AutotuningParameters(), sim.AutotuningParameters()
    assert {one.name: getattr(ours, one.name) for one in fields(theirs)} == vars(theirs)
    for name in ("chatbot", "batch_inference", "interactive"):
        profile, made = printed.WorkloadProfile.create_synthetic(name), sim.WorkloadProfile.create_synthetic(name)
        assert {one.name: getattr(made, one.name) for one in fields(profile)} == vars(profile)
    for limit in (1, 32, 10_000):
        assert printed.get_vllm_default_capture_sizes(limit, "v0") == sim.get_vllm_default_capture_sizes(limit, "v0")


def test_its_model_gives_the_same_figures(printed: SimpleNamespace) -> None:
    """By the same arguments, in the same order."""
    for name in ("calculate_model_memory_from_config", "estimate_activation_memory_from_config"):
        arguments = {"batch_size": 32, "sequence_length": 512} if name.startswith("estimate") else {}
        assert getattr(sim, name)(CONFIG, **arguments) == getattr(printed, name)(CONFIG, **arguments)
    theirs, ours = (
        made.vLLMPerformanceModel.from_transformers_config(CONFIG, 80, 0.9, 2048, made.AutotuningParameters())
        for made in (printed, sim)
    )
    assert ours.calculate_memory_breakdown() == pytest.approx(theirs.calculate_memory_breakdown())
    assert ours.calculate_effective_batch_size() == theirs.calculate_effective_batch_size() == 0


@pytest.mark.parametrize("kind", ["chatbot", "batch_inference", "interactive"])
def test_its_search_finds_the_same(printed: SimpleNamespace, kind: str) -> None:
    """The same space, the same configurations held feasible, the same scores, and the same predictions of the best."""
    theirs = printed.vLLMConfigOptimizer("Llama-3.1-8B", ClusterSpec(H100S.gpu_memory_per_device))
    ours = sim.vLLMConfigOptimizer("Llama-3.1-8B", H100S)
    workload, profile = printed.WorkloadProfile.create_synthetic(kind), sim.WorkloadProfile.create_synthetic(kind)
    space = ours.get_default_search_space(profile)
    assert space == theirs.get_default_search_space(workload)
    found = theirs.search_optimal_config(workload)
    models = [model for model in map(ours.config, ours.generate_configs(space)) if ours.is_feasible_config(model)]
    scores = [ours.evaluate_config(model, profile) for model in models]
    assert scores == pytest.approx([score for _, score in found["all_evaluated_configs"]])
    best = models[scores.index(max(scores))]
    assert asked_of(best) == asked_of(found["optimal_config"])
    predicted = ours.get_config_predictions(best, profile)
    assert predicted.pop("memory_breakdown") == pytest.approx(found["predictions"]["memory_breakdown"])
    assert predicted.items() <= found["predictions"].items()
    optimal = {"optimal_config": best, **{name: found[name] for name in ("memory_breakdown", "predictions")}}
    simulated = {"simulated": {"meets_latency_budget": True}}
    said = sim.generate_deployment_recommendations(optimal | simulated, {"tp": 1})
    assert said == printed.generate_deployment_recommendations(found, {"tp": 1})


def asked_of(model: vLLMPerformanceModel) -> list[Any]:
    names = ("gpu_memory_utilization", "max_model_len", "kv_cache_dtype")
    return [list(model.cudagraph_capture_sizes), *(getattr(model, name) for name in names)]
