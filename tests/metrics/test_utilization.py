"""What a run made use of, worked by hand for a model of one layer, and against sums over single steps and queries."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.engine.leap_block import LEAP
from sim.engine.leap_records import CHUNK
from sim.engine.narrow import NarrowRows
from sim.metrics.utilization import needed, utilization, weights_dtype
from sim.specs.engine import EngineConfig
from sim.specs.model import Attention, Experts, Layer, Linear, ModelSpec, WeightFormat
from tests.metrics.makers import Step, make_leaps
from tests.single_steps import leap_records
from tests.steptime.makers import h100, make_model

ATTENTION = Attention("full", num_heads=2, num_kv_heads=1, head_dim=4, v_head_dim=4)


def tiny_model(attention: Attention = ATTENTION, experts: Experts | None = None) -> ModelSpec:
    """One layer with a matrix of 8 x 10, and a head of 8 x 100."""
    layer = Layer(attention, (Linear("qkv_proj", 8, 10, "column"),), experts, 0)
    head = Linear("lm_head", 8, 100, "vocab")
    return replace(make_model(), layers=(layer,), lm_head=head)


def test_a_prompt_of_three_tokens_and_two_decodes_by_hand() -> None:
    """Matrices: 5 tokens x 2 x 80 FLOPs, 3 sampled rows x 2 x 800. Attention: 2 x 2 heads x (4 + 4) FLOPs a key, of which the
    prompt's queries see 1 + 2 + 3 and the decodes 30. Bytes: 2 x 80 and 2 x 800 of weights; of keys and values, 8 numbers of
    2 bytes each, 3 and 30 are read and 5 written.
    """
    leaps = make_leaps(Step(0.0, 1.0, num_decodes=2, decode_context_tokens=30, num_chunk_tokens=3))
    work = needed(tiny_model(), leaps, 2.0, "skewed")
    assert work.flops == 5 * 160 + 3 * 1600 + 32 * (6 + 30)
    assert work.num_bytes == 160 + 1600 + 16 * (3 + 30 + 5)


def test_shares_are_of_all_gpus_peaks_while_steps_ran() -> None:
    """Llama-3.1-8B on one H100: 100 decodes of 1,000 tokens in a step of 10 ms that waited 5 ms for its requests."""
    deployment = deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(max_model_len=8192))
    leaps = make_leaps(Step(0.005, 0.015, num_decodes=100, decode_context_tokens=100_000))
    parameters, layers = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256, 32
    flops = 100 * 2 * parameters + layers * 2 * 32 * 256 * 100_000
    num_bytes = 2 * parameters + layers * 8 * 256 * 2 * (100_000 + 100)
    found = utilization((deployment, leaps))
    assert found["model_flops_utilization"] == pytest.approx(flops / (0.01 * 989.4e12), rel=1e-3)
    assert found["memory_bandwidth_utilization"] == pytest.approx(num_bytes / (0.01 * 3.35e12), rel=1e-3)
    assert found["arithmetic_intensity"] == pytest.approx(flops / num_bytes)
    assert flops / num_bytes == pytest.approx(55.2, abs=0.1)
    two = utilization(
        (deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(max_model_len=8192, tensor_parallel_size=2)), leaps)
    )
    assert two["model_flops_utilization"] == pytest.approx(flops / (2 * 0.01 * 989.4e12), rel=1e-3)


def test_nothing_ran_nothing_is_said() -> None:
    """No steps, no time and no bytes to divide by."""
    found = utilization((deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(max_model_len=8192)), make_leaps()))
    assert set(found.values()) == {None}


def test_a_peak_is_that_of_the_dtype_that_weights_are_multiplied_in() -> None:
    """fp8 on an H100; on a GPU that has none, and for weights of 4 bits alone, bf16."""
    fp8, int4 = WeightFormat("fp8", 8.0, compute="fp8"), WeightFormat("int4", 4.0)
    of = {form.name: tiny_model(experts=Experts(8, 2, 64, 64, weight=form)) for form in (fp8, int4)}
    a100 = replace(h100(), peak_flops={"bf16": 312e12})
    assert [weights_dtype(of[name], gpu) for name, gpu in (("fp8", h100()), ("fp8", a100), ("int4", h100()))] == [
        "fp8", "bf16", "bf16",
    ]  # fmt: skip


def test_only_experts_that_a_step_wakes_are_read() -> None:
    """Balanced: one token wakes 2 of 8, whose weights are 2 bytes of 3 x 64 x 64 each; each token computes with two."""
    experts = Experts(8, 2, 64, 64)
    leaps = make_leaps(Step(0.0, 1.0), Step(1.0, 2.0, num_decodes=3, decode_context_tokens=300))
    apart = [needed(tiny_model(experts=chosen), leaps, 2.0, "balanced") for chosen in (experts, None)]
    assert apart[0].flops - apart[1].flops == 4 * 2 * 2 * 3 * 64 * 64
    assert apart[0].num_bytes - apart[1].num_bytes == (2 + 6) * 2 * 3 * 64 * 64


@given(
    st.integers(1, 20), st.integers(1, 30), st.integers(0, 300), st.integers(0, 40), st.integers(0, 50),
    st.sampled_from([None, 1, 7, 16, 1000]),
)  # fmt: skip
def test_leaps_are_summed_as_their_steps_would_be(
    num_decodes: int, num_steps: int, context: int, chunk: int, computed: int, window: int | None
) -> None:
    """A leap's contexts grow step by step, a prompt's query by query; what a window hides is not seen."""
    kind = replace(ATTENTION, kind="full" if window is None else "sliding", window=window)
    most = window or 10**9
    first = num_decodes * (1 + context)
    row = np.zeros(1, dtype=LEAP)
    row["num_steps"], row["num_decodes"], row["decode_context_tokens"] = num_steps, num_decodes, first
    row["num_chunk_tokens"] = chunk
    leap = leap_records(row, NarrowRows.of(np.array([(chunk, computed)] if chunk else [], dtype=CHUNK)))
    keys = sum(min(first + num_decodes * step, num_decodes * most) for step in range(num_steps))
    keys += sum(min(computed + 1 + query, most) for query in range(chunk))
    plain = needed(tiny_model(replace(kind, num_heads=0)), leap, 2.0, "skewed")
    assert needed(tiny_model(kind), leap, 2.0, "skewed").flops - plain.flops == pytest.approx(32 * keys)


def test_a_replay_says_what_it_made_use_of() -> None:
    """Prompts compute more than decodes: of the same requests, long prompts have the higher intensity."""
    found = [
        sim.simulate("Qwen3-0.6B", "h100-sxm", trace, limit=20, intervals=False).summary for trace in ("chat", "batch")
    ]
    for summary in found:
        assert 0 < summary["model_flops_utilization"] < 1
        assert 0 < summary["memory_bandwidth_utilization"] < 1
    assert found[0]["arithmetic_intensity"] < found[1]["arithmetic_intensity"]
    assert "Model FLOPs utilization (%)" in str(
        sim.simulate("Qwen3-0.6B", "h100-sxm", "chat", limit=2, intervals=False)
    )
