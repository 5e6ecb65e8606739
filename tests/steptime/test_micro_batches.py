"""Steps in two micro-batches: what overlaps, what it costs, and when it pays."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Experts, WeightFormat
from sim.steptime import micro_batches
from sim.steptime.micro_batches import Half, halves_of, overlapped_s
from sim.steptime.options import StepTimeOptions
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.roofline import RooflineStepTime
from tests.steptime.makers import h100, make_engine, make_model

FP8 = WeightFormat("fp8_block", 8.0, 0.002, "fp8")
MODEL = make_model(experts=Experts(256, 8, 4096, 512, weight=FP8), num_layers=10)
DECODES = 64

seconds = st.floats(0.0, 10.0)
halves = st.builds(Half, seconds, seconds, seconds, seconds)


def in_streams(first: Half, second: Half, num_layers: int) -> float:
    """Both by two threads that take turns at the points where vLLM's yield, on a stream that computes and one that sends."""
    ends = {"computing": 0.0, "sending": 0.0}

    def run(stream: str, seconds: float, after_s: float) -> float:
        ends[stream] = max(ends[stream], after_s) + seconds
        return ends[stream]

    def thread(half: Half) -> Iterator[None]:
        ready_s = 0.0
        for _ in range(num_layers):
            ready_s = run("computing", half.before_s, ready_s)
            yield
            ready_s = run("sending", half.dispatch_s, ready_s)
            ready_s = run("computing", half.experts_s, ready_s)
            yield
            ready_s = run("sending", half.combine_s, ready_s)

    threads = [thread(first), thread(second)]
    running = list(threads)
    while running:
        for one in list(running):
            if next(one, running) is running:
                running.remove(one)
    return max(ends.values())


@given(first=halves, second=halves, num_layers=st.integers(1, 6))
def test_halves_take_turns_as_two_threads_on_two_streams_do(first: Half, second: Half, num_layers: int) -> None:
    """And take no less than all computing or all sending, and no more than both."""
    found_s = overlapped_s(first, second, num_layers)
    assert found_s == pytest.approx(in_streams(first, second, num_layers))
    computing_s = num_layers * sum(half.before_s + half.experts_s for half in (first, second))
    sending_s = num_layers * sum(half.dispatch_s + half.combine_s for half in (first, second))
    assert max(computing_s, sending_s) <= found_s * (1 + 1e-9)
    assert found_s <= (computing_s + sending_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("half", "each_layer_s", "around_s"),
    [
        (Half(2.0, 0.0, 3.0, 0.0), 10.0, 0.0),  # nothing is sent
        (Half(0.0, 2.0, 0.0, 3.0), 10.0, 0.0),  # nothing is computed
        (Half(2.0, 1.5, 3.0, 1.5), 10.0, 1.5),  # what is sent is hidden, but for the last way back
        (Half(1.0, 4.0, 1.0, 4.0), 16.0, 1.0),  # computing is hidden, but for the first of it
    ],
)
def test_what_is_shorter_hides_behind_what_is_longer(half: Half, each_layer_s: float, around_s: float) -> None:
    assert overlapped_s(half, half, 7) == pytest.approx(7 * each_layer_s + around_s)


@given(
    num_decodes=st.integers(0, 20),
    drafts_each=st.integers(0, 3),
    chunks=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=4),
    data=st.data(),
)
def test_halves_have_the_steps_tokens(
    num_decodes: int, drafts_each: int, chunks: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Decodes first; of a chunk that is cut the rest goes on where the first part ends."""
    shape = StepShape(num_decodes, 0, tuple(chunks), 0, num_decodes * drafts_each)
    if shape.num_tokens < 2:
        return
    num_first = data.draw(st.integers(1, shape.num_tokens - 1))
    first, rest = halves_of(shape, num_first)
    assert (first.num_tokens, rest.num_tokens) == (num_first, shape.num_tokens - num_first)
    assert first.num_decodes + rest.num_decodes == num_decodes
    assert first.num_drafts <= first.num_decodes * drafts_each
    assert not (first.chunks and rest.num_decodes)
    assert places((*first.chunks, *rest.chunks)) == places(chunks)


def places(chunks: Sequence[tuple[int, int]]) -> list[int]:
    """Of each token of a chunk, how many stand before it."""
    return [computed_tokens + place for chunk_tokens, computed_tokens in chunks for place in range(chunk_tokens)]


def step_time(ranks: int, backend: str, gpu: HardwareProfile | None = None) -> RooflineStepTime:
    gpu = gpu or h100()
    engine = make_engine(
        MODEL, gpu, data_parallel_size=ranks, enable_expert_parallel=True, all2all_backend=backend, enable_dbo=True
    )
    return RooflineStepTime(MODEL, gpu, engine, StepTimeOptions(expert_routing="uniform"))


def both(model: RooflineStepTime, shape: StepShape, ranks: int, graph: str = "none") -> tuple[float, float]:
    """Seconds of the step as a whole and in two micro-batches; all ranks do the same."""
    whole = Agreement(graph, shape.num_tokens, ranks * shape.num_tokens)  # type: ignore[arg-type]
    split = whole._replace(num_ubatches=2)
    return model.agreed_s(shape, whole), model.agreed_s(shape, split)


def test_many_tokens_over_the_network_are_sent_while_others_are_computed() -> None:
    """Prompts on two nodes: sending is most of the step, and what is computed hides behind it."""
    prompts = StepShape(0, 0, ((8192, 0),), 1)
    whole_s, split_s = both(step_time(16, "deepep_high_throughput"), prompts, 16)
    assert 0.5 * whole_s < split_s < 0.9 * whole_s


def test_few_tokens_read_the_weights_twice_for_nothing() -> None:
    """Decodes on one node: low-latency kernels write over NVLink themselves, so that little is hidden."""
    decodes = StepShape(DECODES, DECODES * 1000, (), DECODES)
    whole_s, split_s = both(step_time(8, "deepep_low_latency"), decodes, 8, "full")
    assert 1.2 * whole_s < split_s < 2 * whole_s


def test_low_latency_kernels_write_over_nvlink_themselves() -> None:
    """Behind which nothing else runs; over the network they leave it to that, as those for much at once do everywhere."""
    for backend, ranks, writes in (
        ("deepep_low_latency", 8, True),
        ("deepep_low_latency", 16, False),
        ("deepep_high_throughput", 8, False),
    ):
        found, more = (step_time(ranks, backend)._token_work.exchange(tokens) for tokens in (1000, 2000))
        assert (found.dispatch_kernel_s > 0) == (found.combine_kernel_s > 0) == writes
        assert (more.dispatch_s > found.dispatch_s) == (more.combine_s > found.combine_s) != writes
        assert sum(found) == pytest.approx(step_time(ranks, backend)._token_work.experts(1000)[-1][2])


def test_kernels_that_multiply_have_fewer_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that DeepEP's kernels for much at once take of the 132, where low-latency ones take none."""
    prompts = StepShape(0, 0, ((8192, 0),), 1)

    def split_s(backend: str, num_sending: int) -> float:
        monkeypatch.setattr(micro_batches, "SENDING_SMS", num_sending)
        return both(step_time(2, backend), prompts, 2)[1]

    assert 1.1 < split_s("deepep_high_throughput", 20) / split_s("deepep_high_throughput", 0) < 132 / 112
    assert split_s("deepep_low_latency", 20) == split_s("deepep_low_latency", 0)


def test_without_a_graph_both_halves_are_launched() -> None:
    """A step of little work takes as long as launching it, twice."""
    model = step_time(2, "deepep_low_latency", replace(h100(), memory_bandwidth_bytes_per_s=1e18))
    decodes = StepShape(2, 100, (), 2)
    whole_s, split_s = both(model, decodes, 2)
    launches_s = model._token_work.num_launches * h100().operators.host.launch_s
    assert split_s - whole_s == pytest.approx(launches_s)


def test_the_curve_of_decodes_is_that_of_steps() -> None:
    """At every sum of contexts; halves of an odd number of tokens differ by one."""
    model, agreement = step_time(16, "deepep_low_latency"), Agreement("full", 72, 16 * 72, 2)
    curve = model.agreed_curve(67, agreement)
    for context_tokens in (67, 1000, 500_000):
        assert curve.at(context_tokens) == model.agreed_s(StepShape(67, context_tokens, (), 67), agreement)
    whole = model.agreed_curve(67, agreement._replace(num_ubatches=1))
    more_s, whole_more_s = (one.at(4_000_000) - one.at(1_000_000) for one in (curve, whole))
    assert more_s == pytest.approx(whole_more_s, rel=0.05)  # each half reads what its own requests have
