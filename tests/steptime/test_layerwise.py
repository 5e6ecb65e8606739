"""Layer-wise offload: what steps wait for a KV cache in host memory, and the deployment that it makes."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.layerwise import deploy_layerwise
from sim.memory.transfers import copied_bytes_per_s
from sim.specs.engine import EngineConfig
from sim.steptime.layerwise import HostKV, LayerwiseStepTime, ring_s
from sim.steptime.operators import elementwise_s
from sim.steptime.protocol import StepShape
from sim.units import GIB

QWEN, GPU = "Qwen/Qwen3-4B-Instruct-2507", "rtx-4090"
LONG = EngineConfig(max_model_len=131072)
TOKEN_BYTES = 2 * 8 * 128 * 2  # K and V of 8 heads of 128 in 16 bits, in one layer


def in_order_s(kv: HostKV, layer_s: float, copy_s: float) -> float:
    """The ring, copy by copy: one needs the link, and the buffer of the layer so many before it."""
    done_s: list[float] = []
    copied_s = 0.0
    for layer in range(kv.num_layers):
        freed_s = done_s[layer - kv.num_kv_buffers] if layer >= kv.num_kv_buffers else 0.0
        copied_s = max(copied_s, freed_s) + copy_s
        done_s.append(max(copied_s, done_s[-1] if done_s else 0.0) + layer_s)
    return done_s[-1]


@given(st.integers(1, 40), st.integers(1, 6), st.floats(1e-6, 1.0), st.floats(1e-6, 1.0))
def test_a_ring_overlaps_copies_with_layers(num_layers: int, buffers: int, layer_s: float, copy_s: float) -> None:
    """As when it is played copy by copy: the slower of both, and one of the other; with one buffer both in turn."""
    kv = HostKV(num_layers, TOKEN_BYTES, buffers)
    assert ring_s(kv, layer_s, copy_s) == pytest.approx(in_order_s(kv, layer_s, copy_s))


def test_a_decode_reads_its_context_over_the_link() -> None:
    """100,000 tokens in 36 layers are 14.7 GB, copied while layers compute; a prompt of them is written out once."""
    deployed = deploy_layerwise(QWEN, GPU, LONG, {})
    steps, plain = deployed.step_time, replace(deployed, host_kv=None).step_time
    link = copied_bytes_per_s(deployed.gpu)
    decode = StepShape(1, 100_000, (), 1)
    copy_s = 100_000 * TOKEN_BYTES / link
    layer_s = plain.step_s(decode) / 36 + elementwise_s(2 * 100_000 * TOKEN_BYTES, deployed.gpu)
    assert copy_s > layer_s
    assert steps.step_s(decode) == pytest.approx(36 * copy_s + layer_s) == pytest.approx(0.59, rel=0.02)
    assert steps.decode_curve(1).at(100_000.0) == pytest.approx(steps.step_s(decode))
    prompt = StepShape(0, 0, ((100_000, 0),), 1)
    assert steps.step_s(prompt) - plain.step_s(prompt) == pytest.approx(36 * copy_s)
    assert isinstance(steps, LayerwiseStepTime)
    assert steps.parts(decode).bound == "link"
    assert steps.explain(prompt)[-1].operator == "KV in host memory"


def test_one_request_at_a_time_says_what_bounds_it() -> None:
    """Prompts compute, decodes wait for the link; a second request waits for the first."""
    requests = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": [100_000, 2_000], "output_tokens": [100, 50]})
    run = sim.simulate(QWEN, GPU, requests, engine=LONG, layerwise={"num_kv_buffers": 4}, intervals=False)
    rows = run.requests
    assert rows["first_scheduled_s"][1] >= rows["finish_s"][0]
    assert run.steps["num_running"].max() == 1
    assert run.summary["limits"]["busy"]["links"] > 0.6
    assert any("nano-vllm" in note for note in run.summary["notes"])
    assert {"compute", "link"} <= set(run.steps["bound"])
    serial = sim.simulate(QWEN, GPU, requests, engine=LONG, layerwise={"num_kv_buffers": 1}, intervals=False)
    assert serial.summary["duration"] > run.summary["duration"]


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ({"max_num_seqs": 4}, {}, "max_num_seqs is decided by layer-wise offload"),
        ({"max_model_len": "auto"}, {}, "give max_model_len a number"),
        ({"tensor_parallel_size": 2}, {}, "one GPU, got 2"),
        ({}, {"num_cpu_blocks": 3}, "131,072 tokens take 128 blocks of 1,024, got 3"),
        ({"max_model_len": 262_144}, {}, "does not hold 262,144 tokens: layer-wise offload needs"),
    ],
)
def test_what_the_mode_does_not_take_is_refused(engine: dict[str, Any], given: dict[str, Any], said: str) -> None:
    """With the argument and what to do."""
    with pytest.raises((ConfigError, DoesNotFitError), match=said):
        deploy_layerwise(QWEN, GPU, replace(LONG, **engine), given)
    with pytest.raises(ConfigError, match="leave replicas, router, fleet, kv_store and kv_pull out"):
        sim.simulate(QWEN, GPU, "chat", layerwise={}, replicas=2)


def test_its_memory_is_the_plan_of_the_ring() -> None:
    """2 GiB of ring and 144 MiB of decode buffer are what is left for KV on the GPU, and all 18 GiB are in host memory."""
    plan = deploy_layerwise(QWEN, GPU, LONG, {}).plan
    assert plan.kv_cache_bytes == 2 * GIB + 144 * 2**20
    assert plan.num_gpu_blocks == 131072 // 16 + 1
    assert plan.feasible
