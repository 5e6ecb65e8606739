"""What speculation adds to a step's time."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.fit_drafting import MEASURED, Measured, rows, step_ms
from sim.deployment import Deployment, deploy
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.drafting import OTHER_PASS_LAUNCHES, PASS_LAUNCHES, STEP_LAUNCHES
from sim.steptime.protocol import StepShape


def deployed(version: str = "0.33.0", **config: Any) -> Deployment:
    engine = EngineConfig(speculative_config=SpeculativeConfig.parse(config) if config else None)
    return deploy("Llama-3.1-8B-Instruct", "h100-sxm", engine, vllm_version=version)


def eagle3(count: int = 3, version: str = "0.33.0", **more: Any) -> Deployment:
    return deployed(version, method="eagle3", model="M", num_speculative_tokens=count, **more)


def verifying(num_requests: int, num_drafts: int, context: int = 600) -> StepShape:
    """Requests that verify so many drafts each."""
    return StepShape(num_requests, num_requests * context, (), num_requests, num_requests * num_drafts)


@pytest.mark.parametrize("measured", MEASURED)
def test_steps_take_what_was_measured_given_the_acceptance_length(measured: Measured) -> None:
    """Within 3 %: a step takes as many times the time per token as it yields tokens."""
    assert step_ms(measured.num_drafts, measured.method) == pytest.approx(measured.step_ms, rel=0.03)


def test_launches_around_the_drafter_are_those_fitted() -> None:
    """To a launch."""
    for method, once, a_pass in rows():
        assert once == pytest.approx(STEP_LAUNCHES, abs=1)
        assert a_pass == pytest.approx(PASS_LAUNCHES.get(method, OTHER_PASS_LAUNCHES), abs=1)


def test_each_further_draft_takes_a_pass_of_the_head() -> None:
    """Of EAGLE; a parallel drafter runs once, whatever it drafts."""
    steps = [eagle3(count).step_time.step_s(verifying(16, count)) for count in (2, 3, 4, 8)]
    passes = [other - one for one, other in pairwise(steps[:3])]
    assert passes[0] == pytest.approx(passes[1], rel=0.1)
    few, many = (eagle3(count, parallel_drafting=True).step_time.step_s(verifying(16, count)) for count in (2, 8))
    assert many - few < steps[3] - steps[0]


def test_a_request_that_verifies_reads_its_context_once() -> None:
    """So four tokens at a long context take hardly longer than one, where a prompt's chunk takes its own kernel."""
    plain, speculating = deployed().step_time, eagle3().step_time
    contexts = (1_000, 100_000)
    plain_s, verifying_s = (
        [model.step_s(verifying(1, drafts, context)) for context in contexts]
        for model, drafts in ((plain, 0), (speculating, 3))
    )
    further_layers = 1 + 3 / 32  # the head's passes read its own layer's cache
    assert verifying_s[1] - verifying_s[0] < 1.15 * further_layers * (plain_s[1] - plain_s[0])


def test_full_graphs_hold_requests_with_all_their_drafts() -> None:
    """A request with fewer drafts than the others takes the step out of them."""
    dispatch = eagle3().graph_dispatch
    assert dispatch.is_uniform(verifying(5, 3))
    assert not dispatch.is_uniform(StepShape(5, 100, (), 5, 14))
    assert dispatch.dispatch(20, is_uniform_decode=True) == ("full", 24)


def test_prompts_are_read_by_the_drafter_too() -> None:
    """One layer more of thirty-two, and its head."""
    prompt = StepShape(0, 0, ((8192, 0),), 1)
    plain_s, speculating_s = deployed().step_time.step_s(prompt), eagle3().step_time.step_s(prompt)
    assert 1.01 < speculating_s / plain_s < 1.08


def test_adapters_are_the_verifying_models_alone() -> None:
    """They take of sixteen requests with three drafts what they take of 64 decodes, and nothing of the drafter."""
    plain, drafting = EngineConfig(), EngineConfig(speculative_config=SpeculativeConfig("eagle3", "M", 3))
    decodes, verifications = StepShape(64, 64 * 600, (), 64), verifying(16, 3)

    def adapters_s(engine: EngineConfig, shape: StepShape) -> float:
        without, adapted = (
            deploy("Llama-3.1-8B-Instruct", "h100-sxm", replace(engine, enable_lora=has_lora)).step_time.step_s(shape)
            for has_lora in (False, True)
        )
        return adapted - without

    assert adapters_s(drafting, verifications) == pytest.approx(adapters_s(plain, decodes))


def test_lookups_in_the_text_cost_the_host_alone() -> None:
    """Without async scheduling the GPU waits for them."""
    ngram = deployed(method="ngram", num_speculative_tokens=3).step_time
    sync = deploy("Llama-3.1-8B-Instruct", "h100-sxm", EngineConfig(async_scheduling=False)).step_time
    more_s = ngram.step_s(verifying(1, 3)) - sync.step_s(verifying(1, 0))
    assert 0 < more_s < 0.002


def test_no_drafts_where_the_table_says_none() -> None:
    """Behind a batch of five or more nothing is drafted, and nothing but the rejection is paid for."""
    table = [[1, 4, 3], [5, 64, 0]]
    model = eagle3(num_speculative_tokens_per_batch_size=table).step_time
    always = eagle3().step_time
    assert model.step_s(verifying(4, 3)) == always.step_s(verifying(4, 3))
    assert model.step_s(verifying(5, 0)) < always.step_s(verifying(5, 0))


@pytest.mark.parametrize("shape", [verifying(8, 3), StepShape(8, 4000, ((500, 0), (100, 300)), 9, 21)])
@pytest.mark.parametrize("version", ["0.8.5", "0.33.0"])
def test_the_parts_of_a_step_add_up(shape: StepShape, version: str) -> None:
    """Drafting is one of them."""
    model = eagle3(version=version).step_time
    times = model.explain(shape)  # type: ignore[attr-defined]
    assert sum(time.prefill_s + time.decode_s for time in times) == pytest.approx(model.step_s(shape))
    assert any(time.operator == "drafting" for time in times)
