"""Where a model, GPUs, engine arguments, a memory plan and step times become one deployment."""

from dataclasses import replace
from typing import Any

import pytest

from sim.deployment import Deployment, deploy
from sim.engine.walking.modes import PLAIN, Modes
from sim.errors import ConfigError, DoesNotFitError
from sim.specs.engine import EngineConfig
from sim.specs.models import load_model
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.linear import LinearStepTime
from sim.steptime.options import StepTimeOptions
from sim.steptime.pipeline import PipelineStepTime, SharedOutStepTime
from sim.steptime.roofline import RooflineStepTime

LINEAR = LinearStepTime(0.01, 0.0, 0.0)
LARGE = EngineConfig(max_model_len=1024)  # the weights of 70 B parameters leave no room for it


def deployed(model: str = "Llama-3.1-70B", *, blocks: int | None = None, given: bool = False) -> Deployment:
    options = StepTimeOptions(given=LINEAR) if given else StepTimeOptions()
    return deploy(model, "h100-sxm", replace(LARGE, num_gpu_blocks_override=blocks), step_times=options)


def test_what_does_not_fit_is_planned_and_not_run() -> None:
    """The plan says why; to run it is an error of one sentence."""
    deployment = deployed()
    assert deployment.why_not() == deployment.plan.reason
    with pytest.raises(DoesNotFitError, match=r"Llama-3\.1-70B on 1 x h100-sxm does not start: "):
        deployment.require_runnable()


def test_blocks_beyond_the_memory_are_a_question_and_no_recommendation() -> None:
    """64 blocks of 16 tokens and the null block hold one request of 1,024: a what-if, which a search must not answer with."""
    deployment = deployed(blocks=65)
    assert deployment.require_runnable() is deployment
    assert deployment.why_not(what_if=False) == deployment.plan.reason


def test_too_few_blocks_are_a_mistake_unless_step_times_are_given() -> None:
    """One block less holds no whole request; with step times of one's own any number is taken at its word."""
    assert deployed(blocks=64).why_not() is not None
    assert deployed(blocks=64, given=True).why_not(what_if=False) is None
    assert deployed(given=True).why_not() is not None


def test_an_engine_with_stages_walks_and_polls() -> None:
    """vLLM's nap of a millisecond after a call that scheduled nothing counts; a single stage has the plain engine."""
    assert deployed("Qwen3-0.6B").modes == PLAIN
    deployment = deploy("Qwen3-0.6B", "h100-sxm", EngineConfig(pipeline_parallel_size=2)).require_runnable()
    assert deployment.modes == Modes(num_stages=2, idle_sleep_s=0.001)
    assert isinstance(deployment.step_time, PipelineStepTime)
    assert deployment.roofline_on is not None


def test_given_step_times_are_shared_out_over_stages() -> None:
    """They tell of kernels what they told of the whole model."""
    engine, options = EngineConfig(pipeline_parallel_size=2), StepTimeOptions(given=LINEAR)
    deployment = deploy("Qwen3-0.6B", "h100-sxm", engine, step_times=options)
    assert isinstance(deployment.step_time, SharedOutStepTime)
    assert deployment.kernel_times is LINEAR


def test_a_cpu_tier_and_stages_are_refused_together() -> None:
    """Nobody has recorded in which order vLLM copies then."""
    engine = EngineConfig(pipeline_parallel_size=2, kv_offloading_size=1.0)
    with pytest.raises(ConfigError, match="kv_offloading_size is not simulated with pipeline stages"):
        deploy("Qwen3-0.6B", "h100-sxm", engine).require_runnable()


DRAFTS = SpeculativeConfig("eagle3", "M", 3)


def test_speculation_goes_with_adapters_a_cpu_tier_and_stages() -> None:
    """Over stages as vLLM's second model runner has it: under async scheduling, and not with several drafts of a pass."""
    beside = EngineConfig(speculative_config=DRAFTS, enable_lora=True, kv_offloading_size=8)
    deploy("Qwen3-0.6B", "h100-sxm", beside).require_runnable()
    stages = EngineConfig(pipeline_parallel_size=2, speculative_config=DRAFTS)
    for version in (None, "0.30.0", "0.32.0"):
        deploy("Qwen3-0.6B", "h100-sxm", stages, vllm_version=version).require_runnable()
    in_parallel = replace(stages, speculative_config=replace(DRAFTS, parallel_drafting=True), async_scheduling=True)
    for engine in (replace(stages, async_scheduling=False), in_parallel):
        with pytest.raises(ConfigError, match=r"^over pipeline stages drafts need async scheduling, .* and vLLM fails"):
            deploy("Qwen3-0.6B", "h100-sxm", engine).require_runnable()


def test_a_block_has_room_for_what_ends_a_prompt() -> None:
    """vLLM leaves out one block of a hit, in which three MTP modules must have what they write anew."""
    model = replace(load_model("GLM-4.5-Air"), num_prediction_layers=3)
    drafts = SpeculativeConfig(method="mtp", num_speculative_tokens=9)
    engine = EngineConfig(speculative_config=drafts, tensor_parallel_size=8, block_size=8)
    times = StepTimeOptions(acceptance=2.0)
    with pytest.raises(ConfigError, match=r"^block_size must be at least the 9 tokens .* for 3 MTP modules, .*, got 8"):
        deploy(model, "h200", engine, step_times=times).require_runnable()
    for enough in ({"block_size": 16}, {"enable_prefix_caching": False}):
        deploy(model, "h200", replace(engine, **enough), step_times=times).require_runnable()


def test_layers_are_copied_of_one_model() -> None:
    """vLLM's offloader that copies may be asked once, and a draft model asks again; one that is read may be read beside it."""
    drafts = SpeculativeConfig("draft_model", "Qwen/Qwen3-0.6B", 3)
    reads = EngineConfig(speculative_config=drafts, cpu_offload_gb=1)
    copies = EngineConfig(speculative_config=drafts, offload_group_size=4)
    options = StepTimeOptions(acceptance=2.0)
    deploy("Qwen3-8B", "h100-sxm", reads, step_times=options).require_runnable()
    with pytest.raises(ConfigError, match="offload_group_size goes with no draft model in vLLM"):
        deploy("Qwen3-8B", "h100-sxm", copies, step_times=options).require_runnable()


def test_notes_of_a_run_say_what_drafts_were_taken_for() -> None:
    """The head's measures, which memory asks for as well; and how drafts fare, which only a run asks for."""
    found = deploy("Qwen3-0.6B", "h100-sxm", EngineConfig(speculative_config=DRAFTS))
    assert [note.split(" ")[0] for note in found.notes] == ["M"]
    assert [note.split(" ")[0] for note in found.run_notes] == ["M", "drafts"]


def test_step_times_are_the_roofline_unless_they_are_given() -> None:
    """Nothing is known of other GPUs or engine arguments where step times come from elsewhere."""
    roofline, given = deployed("Qwen3-0.6B"), deployed("Qwen3-0.6B", given=True)
    assert isinstance(roofline.step_time, RooflineStepTime)
    assert given.step_time is LINEAR
    assert (given.roofline_on, given.roofline_under) == (None, None)
    assert None not in {roofline.roofline_on, roofline.roofline_under}


def test_the_context_length_is_that_of_the_plan() -> None:
    """`auto` is resolved once memory is planned, for the engine and its scheduler alike."""
    deployment = deploy("Llama-3.1-8B", "rtx-4090", EngineConfig(max_model_len="auto"))
    assert deployment.engine.max_model_len == deployment.config.max_model_len == deployment.plan.max_model_len


def test_drafts_that_no_step_has_room_for_are_refused() -> None:
    """A request that goes on with one token and two drafts behind it never could with a budget of two."""
    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=2)
    for budget, is_enough in ((2, False), (3, True)):
        engine = EngineConfig(
            speculative_config=drafts, max_num_seqs=1, max_num_batched_tokens=64, max_num_scheduled_tokens=budget
        )
        deployed = deploy("Llama-3.1-8B", "h100-sxm", engine, step_times=StepTimeOptions(acceptance=(0.5, 0.2)))
        if is_enough:
            deployed.require_runnable()
        else:
            with pytest.raises(ConfigError, match="needs 3 tokens in a step, got a budget of 2"):
                deployed.require_runnable()


@pytest.mark.parametrize(
    ("roomy", "too_little", "refusal"),
    [
        ({}, {"max_num_batched_tokens": 6}, r"needs 4 tokens in a step, got a budget of 3"),
        (
            {"enable_chunked_prefill": False, "max_model_len": 64, "max_num_batched_tokens": 66},
            {"max_num_batched_tokens": 65},
            r"^without chunked prefill a prompt needs up to 63 tokens in a step, got a budget of 62 ",
        ),
    ],
)
def test_what_drafters_take_of_a_step_is_left_out_of_the_budget(
    roomy: dict[str, Any], too_little: dict[str, Any], refusal: str
) -> None:
    """A draft model that drafts three tokens at once takes three of the step's for each request."""
    drafts = SpeculativeConfig(
        method="draft_model", model="Llama-3.1-8B", num_speculative_tokens=3, parallel_drafting=True
    )
    times = StepTimeOptions(acceptance=(0.5, 0.2, 0.1))
    enough = replace(EngineConfig(speculative_config=drafts, max_num_seqs=1, max_num_batched_tokens=7), **roomy)
    deploy("Llama-3.1-8B", "b200", enough, step_times=times).require_runnable()
    with pytest.raises(ConfigError, match=refusal):
        deploy("Llama-3.1-8B", "b200", replace(enough, **too_little), step_times=times).require_runnable()


def test_a_threshold_below_what_ends_a_prompt_is_refused() -> None:
    """With three MTP modules no chunk ends within three tokens of the prompt's end, so that chunks of two would never get there."""
    model = replace(load_model("GLM-4.5-Air"), num_prediction_layers=3)
    drafts = SpeculativeConfig(method="mtp", num_speculative_tokens=3)
    engine = EngineConfig(speculative_config=drafts, tensor_parallel_size=8, long_prefill_token_threshold=3)
    deploy(model, "h200", engine).require_runnable()
    with pytest.raises(ConfigError, match=r"^long_prefill_token_threshold must be at least the 3 tokens .*, got 2"):
        deploy(model, "h200", replace(engine, long_prefill_token_threshold=2)).require_runnable()
