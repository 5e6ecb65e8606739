"""What steps wait for weights in host memory."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.memory.transfers import copied_bytes_per_s
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.sharding import experts_on_rank
from sim.specs.speculative_config import SpeculativeConfig
from sim.specs.stages import pipeline_stages
from sim.specs.weight_offload import HostWeights, offloaded
from sim.steptime.busiest_rank import busiest_rank
from sim.steptime.operators import routed_experts
from sim.steptime.options import StepTimeOptions
from sim.steptime.pipeline import PipelineStepTime
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.weight_offload import OffloadedStepTime, copies_s
from tests.properties import engine_examples as examples
from tests.workload.makers import make_trace

NGRAM = SpeculativeConfig("ngram", None, 3)
MOE = "Qwen3-30B-A3B"
DUMMY = StepShape(1, 1, (), 1)


def weights(num_layers: int, copied: tuple[int, ...], ahead: int) -> HostWeights:
    return HostWeights(num_layers, {}, copied, 1.0, len(copied), ahead, ahead)


@pytest.mark.parametrize(("copy_s", "waits_s"), [(0.5, 0.5), (1.0, 1.0), (3.0, 5.0)])
def test_a_copy_is_hidden_by_the_layers_before_it(copy_s: float, waits_s: float) -> None:
    """Four layers of 1 s, the second and the fourth copied one ahead.

    The fourth's copy begins at 2 s and has until 3 s; that of the second for the next step begins when the fourth has run, and the
    step waits for it. With 3 s a copy the fourth waits from 3 to 5 s, and the step from 6 to 9 s.
    """
    assert copies_s(weights(4, (1, 3), 1), 1.0, copy_s) == pytest.approx(waits_s)


@examples(200)
@given(
    num_layers=st.integers(1, 12),
    every=st.integers(1, 4),
    ahead=st.integers(1, 5),
    layer=st.integers(1, 5),
    copy=st.integers(0, 20),
)
def test_steps_wait_between_nothing_and_all_copies(
    num_layers: int, every: int, ahead: int, layer: int, copy: int
) -> None:
    """Copies one after the other take their own time; a step is never shorter than they are, nor longer than both in turn."""
    copied = tuple(range(every - 1, num_layers, every))
    step = num_layers * layer + copies_s(weights(num_layers, copied, ahead), layer, copy)
    assert max(num_layers * layer, len(copied) * copy) <= step <= num_layers * layer + len(copied) * copy


def test_a_decode_takes_at_least_what_it_reads_over_the_link() -> None:
    """Llama-3.1-8B on an L4 with 4 GiB in host memory: those bytes over PCIe, and the rest from its own memory."""
    plain = deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096))
    less = deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096, cpu_offload_gb=4))
    link_s = (plain.plan.weights_bytes - less.plan.weights_bytes) / copied_bytes_per_s(less.gpu)
    shape = StepShape(1, 500, (), 1)
    assert link_s < less.step_time.step_s(shape) < link_s + plain.step_time.step_s(shape)
    assert isinstance(less.step_time, OffloadedStepTime)
    parts = less.step_time.parts(shape)
    assert parts.bound == "link"
    assert parts.prefill_s + parts.decode_s + parts.host_s == pytest.approx(less.step_time.step_s(shape))


def test_long_prefills_hide_what_they_read() -> None:
    """8,192 tokens keep the tensor cores busy for longer than the weights take over the link."""
    shape = StepShape(0, 0, ((8192, 0),), 1)
    plain, less = (
        deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=16384, num_gpu_blocks_override=2000, cpu_offload_gb=gb))
        for gb in (0, 2)
    )
    assert less.step_time.step_s(shape) == plain.step_time.step_s(shape)


@pytest.mark.parametrize("arguments", [{"cpu_offload_gb": 2}, {"offload_group_size": 4, "offload_prefetch_step": 2}])
def test_runs_add_up(arguments: dict[str, Any]) -> None:
    """The parts of each step are the step, and steps that only decode are bound by the link."""
    trace = make_trace([0.0, 0.1, 0.2], prompt_tokens=[300] * 3, output_tokens=[20] * 3)
    engine = EngineConfig(max_model_len=4096, **arguments)
    found = sim.simulate("Llama-3.1-8B", "l4", trace, engine=engine, intervals=False)
    steps = found.steps
    ends = list(accumulate((steps["prefill_s"] + steps["decode_s"] + steps["host_s"]).tolist()))
    assert ends[-1] == pytest.approx(float((steps["end_s"] - steps["start_s"]).sum()))
    assert set(steps["bound"][steps["num_chunk_tokens"] == 0]) == {"link"}


@pytest.mark.parametrize(
    "arguments",
    [{"cpu_offload_gb": 2}, {"offload_group_size": 4, "offload_num_in_group": 2, "offload_prefetch_step": 2}],
)
def test_each_stage_waits_for_its_own(arguments: dict[str, Any]) -> None:
    """Over the link of its GPU: 2 GiB of each, or of ten or eleven layers each the last two of four; its kernels are those without."""
    plain, less = (
        deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096, pipeline_parallel_size=3, **more)).step_time
        for more in ({}, arguments)
    )
    engine = deploy(
        "Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096, pipeline_parallel_size=2, **arguments)
    ).engine
    assert isinstance(plain, PipelineStepTime)
    assert isinstance(less, PipelineStepTime)
    shape = StepShape(1, 500, (), 1)
    moved = [offloaded(load_model("Llama-3.1-8B"), engine, stage) for stage in pipeline_stages(32, 3)]
    for stage, weights_of_stage in enumerate(moved):
        assert weights_of_stage is not None
        link_s = weights_of_stage.num_bytes / copied_bytes_per_s(load_gpu("l4"))
        assert link_s < less.stage_s(stage, shape) < link_s + plain.stage_s(stage, shape)
        assert less.stage_curve(stage, 1).at(500) == pytest.approx(less.stage_s(stage, shape))
    assert less.hop_s(0, shape) == plain.hop_s(0, shape)


@pytest.mark.parametrize("arguments", [{"cpu_offload_gb": 2}, {"offload_group_size": 4}])
def test_drafts_are_verified_by_weights_in_host_memory(arguments: dict[str, Any]) -> None:
    """A step waits as one of as many tokens without drafts, but that what is copied has no time while the drafter runs."""
    drafts: dict[str, Any] = {
        "speculative_config": SpeculativeConfig("eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 3)
    }
    options = StepTimeOptions(acceptance=2.5)
    waits = []
    nothing: dict[str, Any] = {}
    for more in (drafts, nothing):
        plain, less = (
            deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096, **more, **way), step_times=options).step_time
            for way in (nothing, arguments)
        )
        shape = StepShape(8, 4000, (), 8, 24) if more else StepShape(32, 4000, (), 32)
        waits.append(less.step_s(shape) - plain.step_s(shape))
    if "cpu_offload_gb" in arguments:
        assert waits[0] == pytest.approx(waits[1], rel=1e-9)
    else:
        assert waits[0] == pytest.approx(
            waits[1], rel=0.02
        )  # decodes of 8 requests attend a little otherwise than of 32


@pytest.mark.parametrize("arguments", [{"pipeline_parallel_size": 2}, {"speculative_config": NGRAM}])
def test_runs_with_stages_or_drafts_take_longer_by_it(arguments: dict[str, Any]) -> None:
    """To as many tokens, and the parts of each step are the step."""
    trace = make_trace([0.0, 0.1, 0.2], prompt_tokens=[300] * 3, output_tokens=[20] * 3)
    plain, less = (
        sim.simulate(
            "Llama-3.1-8B",
            "l4",
            trace,
            engine=EngineConfig(max_model_len=4096, cpu_offload_gb=gb, **arguments),
            acceptance=2.0 if "speculative_config" in arguments else None,
            intervals=False,
        )
        for gb in (0, 2)
    )
    assert less.summary["total_output_tokens"] == plain.summary["total_output_tokens"]
    assert less.summary["mean_tpot_ms"] > 1.2 * plain.summary["mean_tpot_ms"]
    steps = less.steps
    parts = steps["prefill_s"] + steps["decode_s"] + steps["host_s"]
    assert parts.tolist() == pytest.approx((steps["end_s"] - steps["start_s"]).tolist())


def ranks(**arguments: Any) -> OffloadedStepTime:
    """Steps of one of two ranks with weights in host memory."""
    engine = EngineConfig(data_parallel_size=2, max_model_len=4096, **arguments)
    timed = deploy(MOE, "h100-sxm", engine, step_times=StepTimeOptions(expert_routing="uniform")).step_time
    assert isinstance(timed, OffloadedStepTime)
    return timed


@pytest.mark.parametrize("arguments", [{"cpu_offload_gb": 4}, {"offload_group_size": 4}])
def test_ranks_that_do_the_same_step_as_one_that_knows_of_no_other(arguments: dict[str, Any]) -> None:
    """Padded to as many tokens; a curve tells the same as its steps."""
    timed, shape = ranks(**arguments), StepShape(8, 4000, (), 8)
    agreed = Agreement("full", 8, 16)
    assert timed.agreed_s(shape, agreed) == timed.step_s(shape)
    assert timed.agreed_curve(8, agreed).at(4000) == timed.agreed_s(shape, agreed)
    assert timed.agreed_curve(8, agreed).at(4000) == timed.decode_curve(8).at(4000)


@pytest.mark.parametrize("enable_expert_parallel", [False, True])
def test_a_dummy_waits_for_the_experts_of_all_tokens(*, enable_expert_parallel: bool) -> None:
    """4 GiB of experts are those of the first layers, read as far as 64 tokens of both ranks choose them, whoever has the tokens."""
    timed = ranks(cpu_offload_gb=4, cpu_offload_params=("experts",), enable_expert_parallel=enable_expert_parallel)
    own, dummy = (timed.waits_s(shape, 0.01, Agreement("none", 0, 64)) for shape in (StepShape(63, 630, (), 63), DUMMY))
    assert own == dummy
    deployment = deploy(
        MOE,
        "h100-sxm",
        EngineConfig(data_parallel_size=2, max_model_len=4096, enable_expert_parallel=enable_expert_parallel),
    )
    whole = deployment.model.layers[0].experts
    assert whole is not None
    mine = experts_on_rank(whole, deployment.engine)
    load = busiest_rank(64.0, whole, 2 if enable_expert_parallel else 1, "uniform")
    link_s = load.distinct * mine.num_bytes / mine.num_experts / copied_bytes_per_s(deployment.gpu)
    num_layers = 4 * 2**30 / mine.num_bytes  # the last matrix goes beyond
    waits_s = link_s - routed_experts(load, mine, deployment.gpu).seconds
    assert num_layers * waits_s <= dummy <= (num_layers + 2 / 3) * waits_s


def test_a_dummy_waits_for_its_own_matrices() -> None:
    """Attention's, of which a token and a padded step of 64 read all: more tokens hide no more than their kernels take longer."""
    timed = ranks(cpu_offload_gb=1, cpu_offload_params=("qkv_proj",))
    alone, padded = (timed.waits_s(DUMMY, 0.01, Agreement("full", each, 2 * each)) for each in (1, 64))
    assert 0.99 * alone < padded < alone
    link_s = 1.0 * 2**30 / copied_bytes_per_s(load_gpu("h100-sxm"))
    assert 0.6 * link_s < alone < link_s  # all layers' have less than 1 GiB


def test_copies_wait_as_long_whoever_computes() -> None:
    """A dummy's layers are the shortest, and hide the least of their copies."""
    timed = ranks(offload_group_size=4)
    agreed = Agreement("full", 8, 16)
    waits = [
        timed.waits_s(shape, timed.agreed_s(shape, agreed), agreed) for shape in (DUMMY, StepShape(8, 8000, (), 8))
    ]
    assert waits[0] >= waits[1] > 0.04


def test_experts_of_tensor_parallel_ranks_are_read_where_they_are_whole() -> None:
    """A token of eight experts, on four GPUs that have 32 each, has the busiest of these read about four of them, not eight."""
    reads = []
    for size in (1, 4):
        engine = EngineConfig(
            tensor_parallel_size=size,
            enable_expert_parallel=size > 1,
            max_model_len=4096,
            cpu_offload_gb=4,
            cpu_offload_params=("experts",),
        )
        timed = deploy(MOE, "h100-sxm", engine, step_times=StepTimeOptions(expert_routing="uniform")).step_time
        assert isinstance(timed, OffloadedStepTime)
        reads.append(timed.waits_s(DUMMY, 0.01))
    assert 4 * 0.4 < reads[1] / reads[0] < 4 * 0.6  # of four times as many layers
