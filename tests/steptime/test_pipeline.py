"""Steps of pipeline stages: what each stage runs, what its host takes, and the messages between them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.deployment import deploy
from sim.specs.drafters import drafter_of
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.model import Experts
from sim.specs.speculative_config import SpeculativeConfig
from sim.specs.stages import pipeline_stages
from sim.steptime.graphs import GraphDispatch
from sim.steptime.linear import LinearStepTime
from sim.steptime.links import all_gather_s, message_s
from sim.steptime.options import StepTimeOptions
from sim.steptime.parts import BOUNDS
from sim.steptime.perturbed import Perturbation, PerturbedStepTime
from sim.steptime.pipeline import Message, PipelineStepTime, pipeline_step_time
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.units import US
from tests.properties import engine_examples as examples
from tests.steptime.makers import FITS, h100, make_engine, make_model

shapes = st.builds(
    StepShape,
    num_decodes=st.integers(1, 300),
    decode_context_tokens=st.integers(300, 300_000),
    chunks=st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 9000)), max_size=3).map(tuple),
    num_sampled=st.integers(1, 300),
    num_drafts=st.just(0),
)


def stages_of(size: int, *, num_layers: int = 31, experts: Experts | None = None, **arguments: Any) -> PipelineStepTime:
    model = make_model(num_layers=num_layers, experts=experts)
    timed = pipeline_step_time(model, h100(), make_engine(model, pipeline_parallel_size=size, **arguments))
    assert isinstance(timed, PipelineStepTime)
    return timed


@examples(30)
@given(shape=shapes, num_ranks=st.integers(2, 4), factor=st.sampled_from((1.0, 1.5)))
def test_ranks_that_agree_on_what_one_would_do(shape: StepShape, num_ranks: int, factor: float) -> None:
    """Of each stage the time of ranks that all have as much, and of its message; padding is computed and sent as well."""
    experts = Experts(8, 2, 4096, 14336)
    model = make_model(num_layers=31, experts=experts)
    engine = make_engine(model, pipeline_parallel_size=2, data_parallel_size=num_ranks)
    staged = pipeline_step_time(model, h100(), engine)
    timed = PerturbedStepTime(staged, Perturbation(factor, factor))
    graph, num_tokens = GraphDispatch.of(engine).dispatch(shape.num_tokens, is_uniform_decode=not shape.chunks)
    alike = Agreement(graph, num_tokens, num_tokens * num_ranks)
    padded = Agreement("none", 4 * num_tokens, 4 * num_tokens * num_ranks)
    for stage in (0, 1):
        assert timed.agreed_stage_s(stage, shape, alike) == pytest.approx(factor * staged.stage_s(stage, shape))
        assert timed.agreed_stage_s(stage, shape, padded) > timed.agreed_stage_s(stage, shape, alike)
    decodes = StepShape(shape.num_decodes, shape.decode_context_tokens, (), shape.num_decodes)
    curve = timed.agreed_stage_curve(1, decodes.num_decodes, padded)
    assert curve.at(decodes.decode_context_tokens) == timed.agreed_stage_s(1, decodes, padded)
    assert timed.agreed_hop_s(0, shape, alike) == pytest.approx(factor * staged.hop_s(0, shape))
    assert timed.agreed_hop_s(0, shape, padded) > timed.agreed_hop_s(0, shape, alike)
    nobody_pads = Agreement("none", 0, num_tokens * num_ranks)
    assert timed.agreed_hop_s(0, shape, nobody_pads) <= timed.agreed_hop_s(0, shape, alike)


@examples(60)
@given(
    shape=shapes,
    size=st.integers(2, 5),
    tensor_parallel_size=st.sampled_from((1, 4)),
    experts=st.none() | st.just(Experts(8, 2, 4096, 14336)),
)
def test_stages_together_run_what_one_gpu_runs(
    shape: StepShape, size: int, tensor_parallel_size: int, experts: Experts | None
) -> None:
    """Kernel by kernel: each layer once, the embedding's all-reduce, norms and sampler once."""
    model = make_model(num_layers=31, experts=experts)
    engine = make_engine(model, tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=size)
    expected, found = Counter[str](), Counter[str]()
    for time in RooflineStepTime(model, h100(), engine).explain(shape):
        expected[time.operator] += time.prefill_s + time.decode_s  # type: ignore[assignment]
    for stage in pipeline_stages(31, size):
        for time in RooflineStepTime(model, h100(), engine, stage=stage).explain(shape):
            found[time.operator] += time.prefill_s + time.decode_s  # type: ignore[assignment]
    kernels = expected.keys() - {"host", "launches"}
    assert {name: found[name] for name in kernels} == pytest.approx({name: expected[name] for name in kernels})


@examples(60)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=3),
    of=st.sampled_from((("Llama-3.1-8B", 4), ("gpt-oss-20b", 8), ("DeepSeek-V2-Lite", 3))),
)
def test_each_stage_takes_what_it_takes_by_itself(shapes: list[StepShape], of: tuple[str, int]) -> None:
    """To the bit, whether the one before it has the same layers, as many of other kinds, or others: a dense one before experts."""
    name, size = of
    deployed = deploy(name, "h100-sxm", EngineConfig(1, size, max_model_len=4096))
    model, gpu, engine = deployed.model, deployed.gpu, deployed.engine
    together = pipeline_step_time(model, gpu, engine)
    for shape in shapes:
        for number, stage in enumerate(pipeline_stages(model.num_layers, size)):
            by_itself = RooflineStepTime(model, gpu, engine, stage=stage)
            assert together.stage_s(number, shape) == by_itself.step_s(shape)


def test_the_last_stage_samples_and_the_first_schedules() -> None:
    """Of equal layers the first takes the host's 0.3 ms and 4 us a request, the middle what shows of a launch, the last the head too."""
    timed, shape = stages_of(3, num_layers=30, async_scheduling=False), StepShape(10, 5000, (), 10)
    first, middle, last = (timed.stage_s(stage, shape) for stage in range(3))
    host = FITS.host
    norms_s = 6e-6  # the embedding's, and the two at the end, over ten rows
    assert first - middle == pytest.approx(host.step_s + 10 * host.request_s - host.exposed_s, abs=norms_s)
    assert last - middle > 128256 * 4096 * 2 / h100().memory_bandwidth_bytes_per_s
    unsampled = shape._replace(num_sampled=0)
    assert timed.stage_s(1, unsampled) == middle
    assert timed.stage_s(2, unsampled) == pytest.approx(middle, abs=norms_s)


def test_async_scheduling_hides_the_scheduler_behind_the_first_stage() -> None:
    """What shows of the host is then the same on each."""
    shape = StepShape(10, 5000, (), 10)
    timed = stages_of(3, num_layers=30, async_scheduling=True)
    assert timed.stage_s(0, shape) == pytest.approx(timed.stage_s(1, shape), abs=5e-6)


def test_a_short_stage_waits_for_the_scheduler_on_the_first_alone() -> None:
    """A stage of one layer is done before the next step is scheduled: 0.3 ms and 4 us a request. Others wait for no scheduler."""
    timed, shape = stages_of(30, num_layers=30, async_scheduling=True), StepShape(100, 5000, (), 100)
    host = FITS.host
    assert timed.stage_s(0, shape) == pytest.approx(host.step_s + 100 * host.request_s)
    assert timed.stage_s(1, shape) < host.step_s + 100 * host.request_s
    assert timed.decode_curve(100).at(5000) == pytest.approx(timed.step_s(shape))


@examples(60)
@given(shape=shapes)
def test_a_step_by_itself_passes_all_stages(shape: StepShape) -> None:
    """It takes their times and those of the messages; its parts add up to it; decodes follow the curve."""
    timed = stages_of(3)
    messages_s = timed.hop_s(0, shape) + timed.hop_s(1, shape)
    assert timed.step_s(shape) == pytest.approx(sum(timed.stage_s(stage, shape) for stage in range(3)) + messages_s)
    parts = timed.parts(shape)
    assert parts.prefill_s + parts.decode_s + parts.host_s == pytest.approx(timed.step_s(shape))
    decodes = StepShape(shape.num_decodes, shape.decode_context_tokens, (), shape.num_decodes)
    assert timed.decode_curve(decodes.num_decodes).at(decodes.decode_context_tokens) == pytest.approx(
        timed.step_s(decodes)
    )
    found = timed.decode_parts(decodes.num_decodes, np.array([float(decodes.decode_context_tokens)]))
    assert found.decode_s[0] == pytest.approx(timed.parts(decodes).decode_s)


def test_what_bounds_a_step_of_stages() -> None:
    """A long prompt computes; few decodes read weights; over a network of one byte a second all waits for the link."""
    timed = stages_of(2)
    assert timed.parts(StepShape(0, 0, ((4000, 0),), 1)).bound == "compute"
    assert timed.parts(StepShape(4, 4000, (), 4)).bound == "memory"
    model, slow = make_model(), replace(h100(), link_bytes_per_s=1.0)
    linked = pipeline_step_time(model, slow, make_engine(model, pipeline_parallel_size=2))
    assert isinstance(linked, PipelineStepTime)
    assert linked.parts(StepShape(4, 4000, (), 4)).bound == "link"
    (place,) = linked.decode_parts(4, np.array([4000.0])).bound.tolist()  # type: ignore[union-attr]
    assert BOUNDS[place] == "link"


def test_a_message_has_hidden_states_and_residual_of_padded_tokens() -> None:
    """250 decodes are padded to 256; each of two tensors has 4,096 numbers a token in bf16. A prompt beyond all graphs is not padded."""
    model = make_model()
    message = Message(model, h100(), make_engine(model, pipeline_parallel_size=2))
    tensor_bytes = 256 * 4096 * 2
    assert message.seconds(0, StepShape(250, 9000, (), 250)) == pytest.approx(
        2 * (7.6 * US + tensor_bytes / (450e9 * 0.8))
    )
    tensor_bytes = 4001 * 4096 * 2
    assert message.seconds(0, StepShape(1, 9, ((4000, 0),), 1)) == pytest.approx(
        2 * (7.6 * US + tensor_bytes / (450e9 * 0.8))
    )


def test_hidden_states_for_a_drafter_go_along() -> None:
    """EAGLE-3 reads what goes into layers 2, 16 and 29 of 32: the first two of four stages send one tensor more, the third two."""
    model = make_model()
    drafter = drafter_of(SpeculativeConfig("eagle3", "M", 3), model)
    engine, shape = make_engine(model, pipeline_parallel_size=4), StepShape(256, 9000, (), 256)
    plain, drafting = Message(model, h100(), engine), Message(model, h100(), engine, drafter)
    more = [drafting.seconds(stage, shape) / plain.seconds(stage, shape) for stage in range(3)]
    assert more == pytest.approx([3 / 2, 3 / 2, 4 / 2])


def test_the_last_stage_drafts() -> None:
    """The others run what they run of as many tokens anyhow."""
    deployed = deploy(
        "Llama-3.1-8B", "h100-sxm", EngineConfig(1, 2, speculative_config=SpeculativeConfig("eagle3", "M", 3))
    )
    shape, engine = StepShape(16, 9600, (), 16, 48), deployed.engine
    stages = [
        RooflineStepTime(deployed.model, deployed.gpu, engine, stage=stage, drafter=deployed.drafter)
        for stage in pipeline_stages(32, 2)
    ]
    operators = [{time.operator for time in stage.explain(shape)} for stage in stages]
    assert ["drafting" in found for found in operators] == [False, True]
    step = deployed.step_time
    assert isinstance(step, PipelineStepTime)
    assert [step.stage_s(number, shape) for number in range(2)] == [stage.step_s(shape) for stage in stages]


def test_ranks_send_their_share_and_gather_the_whole() -> None:
    """Four ranks send a quarter each, at once, and then all gather."""
    model = make_model()
    message = Message(model, h100(), make_engine(model, tensor_parallel_size=4, pipeline_parallel_size=2))
    tensor_bytes = 256 * 4096 * 2
    expected_s = 7.6 * US + tensor_bytes / 4 / (450e9 * 0.8) + all_gather_s(tensor_bytes, 4, h100())
    assert message.seconds(0, StepShape(256, 9000, (), 256)) == pytest.approx(2 * expected_s)


@pytest.mark.parametrize(
    ("gpu", "ranks", "links"),
    [
        ("h100-sxm", 4, ("link", "network", "link")),
        ("h100-sxm", 8, ("network", "network", "network")),
        ("l4", 2, ("pcie", "pcie", "pcie")),
        ("h100-pcie", 1, ("link", "pcie", "link")),
        ("gb200", 4, ("link", "link", "link")),
    ],
)
def test_messages_take_the_link_between_their_stages(gpu: str, ranks: int, links: tuple[str, ...]) -> None:
    """Four stages of so many GPUs each: NVLink where both ends are on it, PCIe within a node, else the network."""
    profile = load_gpu(gpu)
    bandwidths = {
        "link": profile.link_bytes_per_s,
        "pcie": profile.pcie_bytes_per_s,
        "network": profile.network_bytes_per_s,
    }
    for stage, link in enumerate(links):
        fit = getattr(profile.operators.messages, link)
        expected_s = fit.base_s + 1e6 / (bandwidths[link] * fit.efficiency)
        assert message_s(1e6, stage * ranks, (stage + 1) * ranks, profile) == pytest.approx(expected_s)


def test_the_slowest_rank_counts() -> None:
    """Of three ranks a stage on nodes of eight, the third stage sends its last rank's share over the network, and all wait for it."""
    model, gpu = make_model(), h100()
    engine = replace(make_engine(model, pipeline_parallel_size=3), tensor_parallel_size=3)
    message, shape = Message(model, gpu, engine), StepShape(256, 9000, (), 256)
    tensor_bytes = 256 * 4096 * 2
    gathered_s = all_gather_s(tensor_bytes, 3, gpu)
    assert message.seconds(0, shape) == pytest.approx(2 * (message_s(tensor_bytes / 3, 0, 3, gpu) + gathered_s))
    assert message.seconds(1, shape) == pytest.approx(2 * (message_s(tensor_bytes / 3, 5, 8, gpu) + gathered_s))
    assert message_s(1e6, 5, 8, gpu) > message_s(1e6, 3, 6, gpu)


def test_step_times_that_are_given_are_shared_out_by_layers() -> None:
    """31 layers on two stages: 16 and 15 of them; the messages come on top."""
    model = make_model(num_layers=31)
    given_times = LinearStepTime(31e-3, 0.0, 0.0)
    engine = make_engine(model, pipeline_parallel_size=2)
    timed, shape = (
        pipeline_step_time(model, h100(), engine, StepTimeOptions(given=given_times)),
        StepShape(4, 40, (), 4),
    )
    counts = [stage.stop - stage.start for stage in pipeline_stages(31, 2)]
    assert [timed.stage_s(stage, shape) for stage in range(2)] == pytest.approx([count * 1e-3 for count in counts])
    assert timed.step_s(shape) == pytest.approx(31e-3 + timed.hop_s(0, shape))
    assert timed.decode_curve(4).at(40) == pytest.approx(timed.step_s(shape))


def test_stages_take_what_their_layers_take() -> None:
    """Of a layer split of one's own, whether step times are given or a roofline's."""
    model, shape = make_model(num_layers=31), StepShape(4, 400, (), 4)
    engine = make_engine(model, pipeline_parallel_size=2, pp_layer_partition=(20, 11))
    given_times = StepTimeOptions(given=LinearStepTime(31e-3, 0.0, 0.0))
    timed = pipeline_step_time(model, h100(), engine, given_times)
    assert [timed.stage_s(stage, shape) for stage in range(2)] == pytest.approx([20e-3, 11e-3])
    even = pipeline_step_time(model, h100(), make_engine(model, pipeline_parallel_size=2))
    uneven = pipeline_step_time(model, h100(), engine)
    assert uneven.stage_s(0, shape) > even.stage_s(0, shape)
    assert uneven.stage_s(1, shape) < even.stage_s(1, shape)


def test_perturbed_stages_and_messages_are_as_much_longer() -> None:
    """By the factor of decode-only steps, or of those with prompts."""
    timed = stages_of(2)
    off = PerturbedStepTime(timed, Perturbation(decode=2.0, prefill=3.0))
    for shape, factor in ((StepShape(4, 400, (), 4), 2.0), (StepShape(4, 400, ((100, 0),), 5), 3.0)):
        assert off.stage_s(1, shape) == factor * timed.stage_s(1, shape)
        assert off.hop_s(0, shape) == factor * timed.hop_s(0, shape)
