"""Drafts beside adapters and beside KV in host memory, in numbers."""

from typing import Any

import numpy as np
import pytest

import sim
from sim.api import Result
from sim.specs.speculative_config import SpeculativeConfig
from sim.workload.trace import Trace
from tests.workload.makers import make_trace

EAGLE3 = SpeculativeConfig("eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 3)
NGRAM = SpeculativeConfig("ngram", None, 3)


def served(trace: Trace, drafts: SpeculativeConfig, *, vllm_version: str | None = None, **arguments: Any) -> Result:
    """Requests whose drafts are all accepted."""
    engine = sim.EngineConfig(max_model_len=4096, speculative_config=drafts, **arguments)
    how: dict[str, Any] = {"engine": engine, "vllm_version": vllm_version, "acceptance": 4.0, "intervals": False}
    return sim.simulate("Llama-3.1-8B", "h100-sxm", trace, **how)


def test_who_waits_for_a_slot_waits_for_fewer_steps() -> None:
    """With one slot b waits until a has ended: the prompt and three verifications, of four tokens each."""
    trace = make_trace([0.0] * 3, prompt_tokens=[100] * 3, output_tokens=[13] * 3, lora_name=("a", "b", ""))
    found = served(trace, EAGLE3, enable_lora=True, max_cpu_loras=2)
    requests, summary = found.requests, found.summary
    assert requests["first_scheduled_s"][2] == requests["first_scheduled_s"][0]
    assert requests["first_scheduled_s"][1] >= requests["finish_s"][0]
    assert summary["spec_decode_num_drafts"] == 9
    assert summary["lora"]["num_loads"] == 2


@pytest.mark.parametrize(
    ("drafts", "version", "num_local", "num_loaded"),
    [(NGRAM, "0.33.0", 64, 0), (EAGLE3, "0.33.0", 48, 0), (EAGLE3, "0.32.0", 48, 16)],
)
def test_what_a_drafter_has_computed_again(
    drafts: SpeculativeConfig, version: str, num_local: int, num_loaded: int
) -> None:
    """Of four blocks that are on the GPU and in host memory EAGLE does without the last. So it does of the tier's, where vLLM knows which layers are its own;
    before 0.33 who comes again loads that block, and waits for it.
    """
    trace = make_trace([0.0, 5.0], segments=[((1, 64), (2, 1)), ((1, 64), (3, 1))], output_tokens=[13, 13])
    found = served(trace, drafts, vllm_version=version, kv_offloading_size=1.0)
    assert found.requests["num_cached_tokens"].tolist() == [0, num_local + num_loaded]
    assert found.requests["num_loaded_tokens"].tolist() == [0, num_loaded]
    assert found.records.prefix_cache_hits == num_local
    waits_s = found.requests["first_scheduled_s"] - found.requests["arrival_s"]
    assert (waits_s.to_numpy()[1] > 0) == (num_loaded > 0)
    assert found.summary["kv_offload"]["stored_bytes"] == 4 * found.deployment.offload.block_bytes  # type: ignore[union-attr]


def test_a_fleet_drafts_beside_both() -> None:
    """Each replica has slots and a tier of its own."""
    names = tuple(np.resize(["a", "b"], 20))
    trace = make_trace(
        (np.arange(20.0) / 10).tolist(), prompt_tokens=[100] * 20, output_tokens=[13] * 20, lora_name=names
    )
    engine = sim.EngineConfig(enable_lora=True, max_model_len=4096, kv_offloading_size=1.0, speculative_config=EAGLE3)
    found = sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        trace,
        engine=engine,
        acceptance=4.0,
        replicas=2,
        router="round_robin",
        intervals=False,
    )
    assert found.summary["lora"]["num_loads"] == 2
    assert found.summary["spec_decode_num_drafts"] == 60
    assert found.summary["kv_offload"]["stored_bytes"] > 0
