"""The parts of a step: they add up, each is what it says, and many at once are as each by itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.model import Experts, Linear
from sim.steptime.linear import LinearStepTime
from sim.steptime.options import Composition
from sim.steptime.parts import BOUNDS
from sim.steptime.protocol import StepShape
from tests.steptime.makers import DEVICES, FULL, h100, make_model
from tests.steptime.test_roofline import COMPOSITIONS, SHAPES, decode, mixed, prefill, steps

MODELS = {
    "dense": make_model(),
    "sliding": make_model(attention=replace(FULL, kind="sliding", window=1024)),
    "experts": make_model(experts=Experts(64, 2, 4096, 2048)),
}


@given(
    shape=SHAPES,
    device=st.sampled_from(sorted(DEVICES)),
    model=st.sampled_from(sorted(MODELS)),
    composition=st.sampled_from(COMPOSITIONS),
    eager=st.booleans(),
    is_async=st.booleans(),
    tp=st.sampled_from([1, 2]),
)
def test_parts_add_up_to_the_step(
    shape: StepShape, device: str, model: str, composition: Composition, eager: bool, is_async: bool, tp: int
) -> None:
    """Whatever the batch, the model and how mixed steps are run; no part is negative, and each has its cause."""
    arguments = {"enforce_eager": eager, "async_scheduling": is_async, "tensor_parallel_size": tp}
    timed = steps(MODELS[model], DEVICES[device](), composition, **arguments)
    parts = timed.parts(shape)
    assert parts.prefill_s + parts.decode_s + parts.host_s == pytest.approx(timed.step_s(shape), rel=1e-9)
    assert min(parts[:3]) >= 0
    if not shape.chunks:
        assert parts.prefill_s == 0
    if not shape.num_decodes:
        assert parts.decode_s == 0
    assert parts.bound in BOUNDS


@given(
    num_decodes=st.integers(1, 600),
    contexts=st.lists(st.integers(1, 30_000), min_size=1, max_size=5),
    device=st.sampled_from(sorted(DEVICES)),
    model=st.sampled_from(sorted(MODELS)),
    eager=st.booleans(),
    is_async=st.booleans(),
)
def test_many_decode_steps_at_once_are_as_each_by_itself(
    num_decodes: int, contexts: list[int], device: str, model: str, eager: bool, is_async: bool
) -> None:
    """Their decode parts, and what bounds them."""
    timed = steps(MODELS[model], DEVICES[device](), enforce_eager=eager, async_scheduling=is_async)
    decode_s, bound = timed.decode_parts(num_decodes, np.array([float(num_decodes * context) for context in contexts]))
    singly = [timed.parts(decode(num_decodes, context)) for context in contexts]
    assert decode_s == pytest.approx([parts.decode_s for parts in singly], rel=1e-12)
    assert bound is not None
    assert [BOUNDS[place] for place in bound] == [parts.bound for parts in singly]


def test_matrices_are_split_by_tokens() -> None:
    """96 prompt tokens beside 32 decodes: a quarter of the time is the decodes'."""
    timed, shape = steps(), mixed(32, 1000, (96, 0))
    times = [time for time in timed.explain(shape) if time.operator == "gate_up_proj"]
    assert [time.decode_s / (time.prefill_s + time.decode_s) for time in times] == [pytest.approx(0.25)]


def test_two_passes_have_the_parts_of_each_and_the_longer_alone_its_own() -> None:
    """Under `two_pass` a part is what its pass would take alone; under `max` the other is hidden."""
    shape = mixed(32, 1000, (128, 0))
    alone = steps().parts(prefill((128, 0))), steps().parts(decode(32, 1000))
    two, longer = (steps(composition=name).parts(shape) for name in ("two_pass", "max"))
    assert (two.prefill_s, two.decode_s) == pytest.approx((alone[0].prefill_s, alone[1].decode_s))
    assert min(longer.prefill_s, longer.decode_s) == 0
    assert max(longer.prefill_s, longer.decode_s) == pytest.approx(max(alone[0].prefill_s, alone[1].decode_s))


def test_a_bound_is_the_resource_that_most_of_the_step_waits_for() -> None:
    """A long prompt computes, decodes read, a small model waits for its launches, and two GPUs on a slow link for that."""
    slow = replace(h100(), link_bytes_per_s=1e9)
    small = make_model(num_layers=2, lm_head=Linear("lm_head", 4096, 1000, "vocab"))
    found = [
        steps().parts(prefill((8192, 0))).bound,
        steps().parts(decode(8, 1000)).bound,
        steps(small, enforce_eager=True, async_scheduling=False).parts(decode(1, 10)).bound,
        steps(gpu=slow, tensor_parallel_size=2).parts(prefill((8192, 0))).bound,
    ]
    assert found == ["compute", "memory", "host", "link"]


@given(shape=SHAPES)
def test_a_linear_models_base_is_the_hosts(shape: StepShape) -> None:
    """Tokens and contexts are each kind's own, and no resource is known to bound them."""
    timed = LinearStepTime(base_s=0.01, per_token_s=1e-4, per_context_token_s=1e-6)
    parts = timed.parts(shape)
    assert (parts.host_s, parts.bound) == (0.01, None)
    assert parts.decode_s == pytest.approx(1e-4 * shape.num_decodes + 1e-6 * shape.decode_context_tokens)
    assert parts.prefill_s + parts.decode_s + parts.host_s == pytest.approx(timed.step_s(shape), rel=1e-9)
    context_tokens = np.array([float(shape.decode_context_tokens)])
    assert timed.decode_parts(shape.num_decodes, context_tokens).decode_s == pytest.approx([parts.decode_s])
