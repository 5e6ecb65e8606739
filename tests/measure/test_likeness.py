"""What makes a measured run like a forecast: the deployment, and what the load put it through."""

from dataclasses import replace
from typing import Any

import pytest

from sim.deployment import deploy
from sim.measure.confidence import confidence
from sim.measure.likeness import FACETS, Regime, Traits, novelty, regime, traits, traits_of
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine

SERVED = Regime(is_cached=True, prompt_tokens=550.0, context_tokens=670.0, batch=30.0)
RUN = Traits("h100-sxm", "llama", "bf16", 8e9, vllm_version="0.15", regime=SERVED)


def names(of: Traits, *known: Traits) -> tuple[list[str], list[str]]:
    """What was never measured, and what was not with the rest."""
    found = novelty(of, known)
    return [facet.name for facet in found.never], [facet.name for facet in found.apart]


def deployed(gpu: HardwareProfile | None = None, version: str | None = None, **engine: Any) -> Traits:
    model, profile = load_model("Llama-3.1-8B"), gpu or load_gpu("h100-sxm")
    return traits(model, profile, resolve_engine(EngineConfig(**engine), model, profile, vllm_version=version))


@pytest.mark.parametrize(
    ("changes", "never"),
    [
        ({"gpu": "l4"}, "gpu"),
        ({"kv_dtype": "fp8"}, "kv_dtype"),
        ({"execution": "eager"}, "execution"),
        ({"vllm_version": "0.99"}, "vllm_version"),
        ({"composition": "max"}, "composition"),
        ({"active_parameters_per_gpu": 20e9}, "size"),
        ({"regime": SERVED._replace(is_cached=False)}, "prompts"),
        ({"regime": SERVED._replace(prompt_tokens=2e3)}, "prompt_tokens"),
        ({"regime": SERVED._replace(context_tokens=2e3)}, "context_tokens"),
        ({"regime": SERVED._replace(batch=300.0)}, "batch"),
    ],
)
def test_each_facet_by_itself_makes_a_forecast_new(changes: dict[str, Any], never: str) -> None:
    """Everything else being that of the run."""
    assert names(RUN._replace(**changes), RUN) == ([never], [])


def test_near_numbers_are_alike() -> None:
    """Within a factor of two."""
    near = SERVED._replace(prompt_tokens=1000.0, batch=16.0)
    assert names(RUN._replace(active_parameters_per_gpu=15e9, regime=near), RUN) == ([], [])


def test_what_was_measured_in_other_runs_only_is_apart() -> None:
    """This model cached, another uncached: not this one uncached."""
    other = RUN._replace(gpu="b200-sxm", family="mixtral", regime=SERVED._replace(is_cached=False))
    assert names(RUN._replace(regime=other.regime), RUN, other) == ([], ["prompts"])


def test_a_number_counts_by_its_doublings() -> None:
    """Prompts eight times as long as any are three novelties; ones that are shorter than any are one."""
    assert novelty(RUN._replace(regime=SERVED._replace(prompt_tokens=4400.0)), [RUN]).degree == pytest.approx(3)
    assert novelty(RUN._replace(regime=SERVED._replace(prompt_tokens=10.0)), [RUN]).degree == 1


def test_what_was_not_replayed_yet_is_not_judged() -> None:
    """Nor is a run whose version is not known evidence of one."""
    assert names(RUN._replace(regime=None), RUN) == ([], [])
    assert names(RUN, RUN._replace(vllm_version=None)) == (["vllm_version"], [])


def test_a_profile_with_figures_of_its_own_is_another_gpu() -> None:
    """A third of the bandwidth under an old name; another price is no other GPU, nor is a copy."""
    h100 = load_gpu("h100-sxm")
    slow = replace(h100, memory_bandwidth_bytes_per_s=h100.memory_bandwidth_bytes_per_s / 3)
    assert deployed(replace(h100, price_usd_per_hour=1.0)).gpu == "h100-sxm"
    assert deployed(slow).gpu == "h100-sxm with figures of its own"
    assert deployed(replace(slow, name="mine")).gpu == "mine"


def test_traits_of_engine_arguments() -> None:
    """Eager steps, KV in fp8 and a version that nobody knows yet."""
    found = deployed(version="0.99.1", enforce_eager=True, kv_cache_dtype="fp8_e4m3")
    assert (found.execution, found.kv_dtype, found.vllm_version, found.is_newer_than_known) == (
        "eager",
        "fp8",
        "0.99",
        True,
    )
    assert (deployed().execution, deployed().kv_dtype, deployed().is_newer_than_known) == ("graphs", "auto", False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"enable_lora": True}, "LoRA adapters"),
        ({"cpu_offload_gb": 4.0}, "weights in host memory"),
        ({"offload_group_size": 8}, "weights in host memory"),
        ({"kv_offloading_size": 8.0}, "KV in host memory"),
        ({"kv_offloading_size": 8.0, "enable_lora": True}, "LoRA adapters and KV in host memory"),
        ({}, None),
    ],
)
def test_what_no_measured_run_had_beside_it_is_said(arguments: dict[str, Any], said: str | None) -> None:
    """Adapters, weights and KV in host memory: nothing like them is among the runs that bands come from."""
    found = traits_of(deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(**arguments)))
    assert found.beside == (said or "all on the GPU")
    assert (confidence(found).level == "extrapolated") == (said is not None)
    assert ("beside" in names(found, RUN)[0]) == (said is not None)


def test_every_facet_says_itself_in_words() -> None:
    """Of a forecast that has all."""
    words = [facet.words(RUN) for facet in FACETS]
    assert all(words)
    assert "batches of 30 requests" in words
    assert "8 G active parameters a GPU" in words


def test_the_regime_of_a_summary() -> None:
    """Two requests of 100 prompt and 11 output tokens in 10 steps, their prompts found in the cache."""
    figures: dict[str, Any] = {
        "completed": 2,
        "num_steps": 10,
        "total_input_tokens": 200,
        "total_output_tokens": 22,
        "prefix_cache_hit_rate": 0.9,
    }
    alike = Regime(is_cached=True, prompt_tokens=100.0, context_tokens=105.5, batch=2.0)
    assert regime(figures) == alike
    arrived = figures | {"p1_arrival_s": 0.0, "p5_arrival_s": 2.5}
    assert regime(arrived) == alike._replace(p1_arrival_s=0.0, p5_arrival_s=2.5)
    assert regime(figures | {"completed": 0}) is None
