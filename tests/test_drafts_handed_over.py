"""Drafts where KV comes from other replicas: in pools that hand it over, with a store, and with pulls."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.api import Result
from sim.errors import ConfigError
from sim.specs.models import load_model
from sim.specs.speculative_config import SpeculativeConfig
from sim.workload.trace import Trace
from tests.workload.makers import make_trace

EAGLE3 = SpeculativeConfig("eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 3)
NGRAM = SpeculativeConfig("ngram", None, 3)
BLOCK_BYTES = 16 * 2 * 8 * 128 * 2
"""Of one layer of Llama-3.1-8B, which has 32, and of a layer that drafts."""


def served(trace: Trace, prefill: SpeculativeConfig | None, decode: SpeculativeConfig | None, **more: Any) -> Result:
    """One replica of each role; all drafts are accepted."""
    pools = [
        {"name": role, "role": role, "engine": {"speculative_config": drafts}}
        for role, drafts in (("prefill", prefill), ("decode", decode))
    ]
    given: dict[str, Any] = {"acceptance": 4.0} if prefill or decode else {}
    engine = sim.EngineConfig(max_model_len=4096)
    asked: dict[str, Any] = {"engine": engine, "fleet": {"pools": pools}, "intervals": False} | given | more
    return sim.simulate("Llama-3.1-8B", "h100-sxm", trace, **asked)


def one_prompt(num_tokens: int = 100) -> Trace:
    return make_trace([0.0], prompt_tokens=[num_tokens], output_tokens=[13])


def test_the_first_token_is_verified_by_nobody() -> None:
    """The decode replica computes the last token of the prompt again beside drafts that are padding; then four tokens come at a time."""
    engine = sim.EngineConfig(max_model_len=4096, async_scheduling=False)
    found = served(one_prompt(), EAGLE3, EAGLE3, engine=engine)
    prefill, decode = found.summary["pools"]
    assert found.summary["spec_decode_num_drafts"] == decode["spec_decode_num_drafts"] == 3
    assert found.summary["spec_decode_accepted_tokens"] == 9
    assert (prefill["spec_decode_num_drafts"], prefill["num_steps"]) == (0, 1)
    assert decode["num_steps"] == 4
    assert found.steps.loc[found.steps["replica"] == 1, "num_draft_tokens"].tolist() == [3] * 4


@pytest.mark.parametrize(("drafts", "num_layers"), [(None, 32), (NGRAM, 32), (EAGLE3, 33)])
def test_a_drafters_kv_goes_along(drafts: SpeculativeConfig | None, num_layers: int) -> None:
    """Of seven blocks."""
    found = served(one_prompt(), drafts, drafts)
    assert found.requests["kv_bytes"].tolist() == [7 * num_layers * BLOCK_BYTES]


def test_a_prompt_takes_longer_where_a_drafter_reads_it_too() -> None:
    plain, drafting = (served(one_prompt(2000), drafts, drafts).requests for drafts in (None, EAGLE3))
    assert drafting["prefill_end_s"][0] > plain["prefill_end_s"][0]


def test_each_side_has_drafts_of_its_own_where_they_keep_no_kv() -> None:
    """And as many as it likes."""
    assert served(one_prompt(), None, NGRAM).summary["spec_decode_accepted_tokens"] == 9
    found = served(one_prompt(), replace(EAGLE3, num_speculative_tokens=1), EAGLE3, acceptance=[1.0] * 3)
    assert found.summary["spec_decode_accepted_tokens"] == 9


@pytest.mark.parametrize(
    ("prefill", "decode", "sentence"),
    [
        (None, EAGLE3, "got eagle3 yuhuili/EAGLE3-LLaMA3.1-Instruct-8B and, in prefill, no drafter with a KV cache;"),
        (EAGLE3, NGRAM, "got no drafter with a KV cache and, in prefill, eagle3 yuhuili/"),
        (
            SpeculativeConfig("draft_model", "Qwen3-0.6B", 3),
            SpeculativeConfig("draft_model", "Qwen3-0.6B", 3, parallel_drafting=True),
            "got draft_model Qwen3-0.6B with parallel_drafting and, in prefill, draft_model Qwen3-0.6B; give both the same",
        ),
    ],
)
def test_drafters_that_keep_kv_are_the_same(prefill: Any, decode: Any, sentence: str) -> None:
    """As vLLM's connector has it."""
    with pytest.raises(ConfigError, match="decode: a drafter's KV is handed over with the model's") as refused:
        served(one_prompt(), prefill, decode)
    assert sentence in str(refused.value)


MODULES = replace(load_model("GLM-4.5-Air"), num_prediction_layers=3)


def by_modules(num_tokens: int, prefill: int = 3, decode: int = 3) -> Result:
    """As many drafts on either side, of modules that look ahead one after the other."""
    pools = [
        {"name": role, "role": role, "engine": {"speculative_config": SpeculativeConfig("mtp", None, count)}}
        for role, count in (("prefill", prefill), ("decode", decode))
    ]
    engine = sim.EngineConfig(tensor_parallel_size=8, max_model_len=4096)
    return sim.simulate(
        MODULES, "h200", one_prompt(num_tokens), engine=engine, fleet={"pools": pools}, acceptance=3.0, intervals=False
    )


def test_what_several_modules_write_anew_is_computed_by_the_decode_replica() -> None:
    """Two tokens of a prompt, so that 98 go in six blocks and 99 in seven."""
    six, seven = (by_modules(num_tokens) for num_tokens in (98, 99))
    assert seven.requests["kv_bytes"][0] * 6 == six.requests["kv_bytes"][0] * 7
    assert six.summary["spec_decode_num_drafts"] == 4
    with pytest.raises(
        ConfigError, match="got mtp with 2 drafts and, in prefill, mtp with 3 drafts; give both the same"
    ):
        by_modules(98, 3, 2)


def test_pools_that_serve_whole_requests_draft_as_they_like() -> None:
    pools = [{"role": "prefill"}, {"role": "decode"}, {"engine": {"speculative_config": EAGLE3}}]
    asked: dict[str, Any] = {"fleet": {"router": "round_robin", "pools": pools}, "acceptance": 4.0, "intervals": False}
    trace = make_trace([0.0, 1.0], prompt_tokens=[100, 100], output_tokens=[13, 13])
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, **asked)
    assert found.requests["replica"].tolist() == [1, 2]
    assert found.summary["spec_decode_num_drafts"] == 3


@pytest.mark.parametrize(("how", "num_layers"), [(None, 32), (EAGLE3, 33)])
def test_a_store_has_the_drafters_kv_too(how: SpeculativeConfig | None, num_layers: int) -> None:
    """Two chunks are stored by one replica, and loaded by the other."""
    trace = make_trace([0.0, 5.0], segments=[((1, 512), (2, 1)), ((1, 512), (3, 1))], output_tokens=[13, 13])
    engine = sim.EngineConfig(max_model_len=4096, speculative_config=how)
    asked: dict[str, Any] = {"replicas": 2, "router": "round_robin", "kv_store": {}, "intervals": False}
    asked |= {"acceptance": 4.0} if how else {}
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, **asked)
    store = found.summary["kv_store"]
    assert store["loaded_bytes"] == store["stored_bytes"] == 32 * num_layers * BLOCK_BYTES
    assert found.requests["num_loaded_tokens"].tolist() == [0, 512]
    assert found.summary.get("spec_decode_num_drafts", 6) == 6


@pytest.mark.parametrize(("how", "num_layers"), [(None, 32), (EAGLE3, 33)])
def test_a_pull_brings_the_drafters_kv_too(how: SpeculativeConfig | None, num_layers: int) -> None:
    """All of a prefix that another replica has, of which EAGLE would compute the last block again if it were its own."""
    trace = make_trace([0.0, 5.0], segments=[((1, 512), (2, 1)), ((1, 512), (3, 1))], output_tokens=[13, 13])
    engine = sim.EngineConfig(max_model_len=4096, speculative_config=how)
    asked: dict[str, Any] = {"replicas": 2, "router": "round_robin", "kv_pull": {}, "intervals": False}
    asked |= {"acceptance": 4.0} if how else {}
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, **asked)
    assert found.summary["kv_pulls"]["total_bytes"] == 32 * num_layers * BLOCK_BYTES
    assert found.requests["num_pulled_tokens"].tolist() == [0, 512]
    assert found.summary.get("spec_decode_num_drafts", 6) == 6


def test_adapters_have_slots_in_pools_that_hand_over() -> None:
    """One loads each adapter in either pool, and in the decode pool the second waits for the only slot."""
    trace = make_trace([0.0, 0.0], prompt_tokens=[100, 100], output_tokens=[50, 50], lora_name=("a", "b"))
    engine = sim.EngineConfig(enable_lora=True, max_model_len=4096)
    found = served(trace, None, None, engine=engine)
    requests = found.requests
    assert found.summary["lora"]["num_loads"] == 4
    assert np.diff(requests["first_token_s"])[0] > 0.9 * (requests["finish_s"][0] - requests["first_token_s"][0])
