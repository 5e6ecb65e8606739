"""Replicas that serve adapters: their memory, their steps, what waits for which adapter, and what is refused."""

from typing import Any

import numpy as np
import pytest

import sim
from sim.api import Result
from sim.deployment import deploy
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.steptime.protocol import StepShape
from tests.workload.makers import make_trace


def served(names: tuple[str, ...], **arguments: Any) -> Result:
    """Requests that come at once, each of 100 tokens and 10 answers."""
    trace = make_trace(
        [0.0] * len(names), prompt_tokens=[100] * len(names), output_tokens=[10] * len(names), lora_name=names
    )
    engine = EngineConfig(enable_lora=True, max_model_len=4096, **arguments)
    return sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, intervals=False)


def test_room_for_adapters_is_taken_from_the_cache() -> None:
    """An adapter of rank 16 beside Llama-3.1-8B: 41.9 million numbers in its layers, 4.2 million in embedding and head."""
    plain = deploy("Llama-3.1-8B", "h100-sxm").plan
    four = deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(enable_lora=True, max_loras=4)).plan
    layer = (3 * 4096 + 6144) + (4096 + 4096) + (2 * 4096 + 28672) + (14336 + 4096)
    one = 2 * 16 * (32 * layer + 2 * (128256 + 4096))
    assert four.weights_bytes - plain.weights_bytes == 4 * one
    assert four.num_gpu_blocks < plain.num_gpu_blocks


def test_steps_take_longer_by_two_kernels_a_matrix() -> None:
    """Mostly launches: a decode of 64 on H100 takes 4 x 2 x 32 kernels more, of 3.6 us or little more each."""
    shape = StepShape(64, 64 * 1000, (), 64)
    plain = deploy("Llama-3.1-8B", "h100-sxm").step_time.step_s(shape)
    adapted = deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(enable_lora=True)).step_time.step_s(shape)
    assert 256 * 3.5e-6 < adapted - plain < 256 * 6e-6


def test_an_adapter_beyond_max_loras_waits_and_lets_others_pass() -> None:
    """With one slot b waits until a has ended; the base model and a pass it."""
    requests = served(("a", "b", "", "a"), max_cpu_loras=2).requests
    begun = requests["first_scheduled_s"].to_numpy()
    assert begun[0] == begun[2] == begun[3]
    assert begun[1] >= requests["finish_s"][3]
    together = served(("a", "b", "", "a"), max_loras=2).requests
    assert len(set(together["first_scheduled_s"])) == 1


def test_adapters_are_loaded_and_read() -> None:
    """Two adapters take turns in one slot; with room for one in host memory the second is read from storage first."""
    names = ("a", "b")
    both = served(names, max_cpu_loras=2)
    assert both.summary["lora"]["num_loads"] == 2
    assert both.summary["lora"]["num_reads"] == 0
    one = served(names)
    assert one.summary["lora"]["num_reads"] == 1
    assert one.summary["lora"]["load_s"] > both.summary["lora"]["load_s"] > 0
    waited = one.requests["finish_s"][1] - both.requests["finish_s"][1]
    assert waited == pytest.approx(one.summary["lora"]["load_s"] - both.summary["lora"]["load_s"])


def test_equal_prompts_share_blocks_under_one_adapter_alone() -> None:
    """160 equal tokens: the second under the same adapter finds 144 of them, the one under another nothing."""
    trace = make_trace([0.0, 5.0, 10.0], segments=[((1, 160),)] * 3, lora_name=("a", "a", "b"))
    engine = EngineConfig(enable_lora=True, max_loras=2, max_model_len=4096)
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, intervals=False).requests
    assert found["num_cached_tokens"].tolist() == [0, 144, 0]
    assert found["lora_name"].tolist() == ["a", "a", "b"]


def test_adapters_without_enable_lora_are_refused() -> None:
    """Rather than served by the base model."""
    trace = make_trace([0.0], lora_name=("a",))
    with pytest.raises(ConfigError, match=r"asks for 1 LoRA adapters \(`lora_name`\), which the engine does not serve"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", trace, intervals=False)


def test_a_fleet_serves_adapters() -> None:
    """Each replica has slots of its own; the loads of all are counted."""
    names = tuple(np.resize(["a", "b", "c"], 30))
    trace = make_trace((np.arange(30.0) / 10).tolist(), lora_name=names)
    engine = EngineConfig(enable_lora=True, max_loras=3, max_model_len=4096)
    found = sim.simulate(
        "Llama-3.1-8B", "h100-sxm", trace, engine=engine, replicas=3, router="round_robin", intervals=False
    )
    assert found.summary["lora"]["num_loads"] == 3  # each replica sees one adapter of the three
    assert found.summary["completed"] == 30
