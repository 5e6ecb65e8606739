"""Leaps: when each of many steps ends, without evaluating each."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.leaps import DecodeSteps, Leap, after, end_s, num_launched_before
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from sim.steptime.linear import LinearDecodeCurve
from sim.steptime.roofline import RooflineStepTime

leaps = st.builds(
    Leap,
    num_steps=st.integers(1, 40),
    start_s=st.floats(-5, 5),
    linear_s=st.floats(0.5, 2),
    square_s=st.floats(0, 0.05),
    cube_s=st.floats(0, 1e-5),
)


class Knee:
    """A step takes a second, and from 100,000 tokens of context on it grows by a millisecond a token."""

    def at(self, context_tokens: float) -> float:
        return 1.0 + max(0.0, context_tokens - 100_000) / 1000


@dataclass(frozen=True)
class Cubic:
    """A curve as a roofline's: the cube norm of two lines."""

    unit_s: float = 1.0

    def at(self, context_tokens: float) -> float:
        return self.unit_s * float(((2.0 + 1e-5 * context_tokens) ** 3 + (5e-6 * context_tokens) ** 3) ** (1 / 3))


def ends_of(leap: Leap) -> list[float]:
    return [end_s(leap, number) for number in range(leap.num_steps + 1)]


@given(leaps, st.integers(0, 40))
def test_the_rest_of_a_leap_goes_on(leap: Leap, number: int) -> None:
    """What is left after some steps ends when the whole leap would have."""
    number = min(number, leap.num_steps - 1)
    rest = after(leap, number)
    assert ends_of(rest) == pytest.approx(ends_of(leap)[number:], rel=1e-12, abs=1e-12)


@given(leaps, st.floats(-6, 100), st.sampled_from([1, 2]))
def test_a_step_is_launched_when_one_before_it_ends(leap: Leap, until_s: float, in_flight: int) -> None:
    """The first step at any rate; each further one if the step before, or with two in flight the one before that, ended earlier."""
    ends = ends_of(leap)
    launched_s = ends[: leap.num_steps] if in_flight == 1 else [ends[0], *ends[: leap.num_steps - 1]]
    expected = 1 + sum(when_s < until_s for when_s in launched_s[1:])
    assert num_launched_before(leap, until_s, in_flight) == expected


@pytest.mark.parametrize(
    ("num_steps", "in_flight", "expected"), [(4, 1, [1, 1, 2, 3, 4]), (4, 2, [1, 2, 3, 4, 4]), (2, 2, [1, 2, 2, 2, 2])]
)
def test_a_step_that_is_launched_at_that_very_instant_does_not_count(
    num_steps: int, in_flight: int, expected: list[int]
) -> None:
    """Steps of a second from 0 on: before 0, 1, 2, 3 and 4 so many have been launched, one more with two in flight."""
    leap = Leap(num_steps, 0.0, 1.0, 0.0, 0.0)
    assert [num_launched_before(leap, float(until_s), in_flight) for until_s in range(5)] == expected


def test_steps_may_become_shorter() -> None:
    """By a 32nd of a second each: of what is launched before the k-th step ends there are k steps."""
    leap = Leap(16, 0.0, 1.0, -1 / 64, 0.0)
    assert [num_launched_before(leap, end_s(leap, number), 1) for number in range(1, 16)] == list(range(1, 16))


def leap_over(steps: DecodeSteps, num_decodes: int, context_tokens: int, num_steps: int) -> list[Leap]:
    """The leaps that make so many steps."""
    now_s, leaps = 0.0, []
    while num_steps:
        leap = steps.leap(context_tokens, num_steps, now_s)
        now_s, num_steps = end_s(leap, leap.num_steps), num_steps - leap.num_steps
        context_tokens += leap.num_steps * num_decodes
        leaps.append(leap)
    return leaps


@given(st.integers(1, 300), st.integers(1, 3000), st.integers(1, 200), st.sampled_from([1.0, 1e-3]))
def test_leaps_end_when_steps_would(num_decodes: int, mean_tokens: int, num_steps: int, unit_s: float) -> None:
    """However the curve bends, and in milliseconds too, leap after leap ends within 1e-9 of step after step."""
    curve, context_tokens = Cubic(unit_s), num_decodes * mean_tokens
    last = leap_over(DecodeSteps(curve, num_decodes), num_decodes, context_tokens, num_steps)[-1]
    steps_s = [curve.at(context_tokens + number * num_decodes) for number in range(num_steps)]
    assert end_s(last, last.num_steps) == pytest.approx(sum(steps_s), rel=1e-9)


def test_a_roofline_is_leapt_over_in_few_panels() -> None:
    """100 steps of 100 decodes whose contexts are 1,250 tokens on average: two leaps."""
    model, gpu = load_model("Llama-3.1-8B"), load_gpu("h100-sxm")
    curve = RooflineStepTime(model, gpu, resolve_engine(EngineConfig(), model, gpu)).decode_curve(100)
    assert [leap.num_steps for leap in leap_over(DecodeSteps(curve, 100), 100, 125_000, 100)] == [61, 39]


def test_a_knee_is_walked_over_step_by_step() -> None:
    """Before and behind its panel there are leaps, in it every step is evaluated; the sum is exact."""
    steps, curve = DecodeSteps(Knee(), 50), Knee()
    now_s, context_tokens, counts = 0.0, 90_000, []
    while context_tokens < 120_000:
        leap = steps.leap(context_tokens, 1000, now_s)
        now_s, context_tokens = end_s(leap, leap.num_steps), context_tokens + 50 * leap.num_steps
        counts.append(leap.num_steps)
    assert max(counts[:3]) > 1
    assert 1 in counts
    assert counts[-1] > 1
    assert now_s == pytest.approx(sum(curve.at(tokens) for tokens in range(90_000, context_tokens, 50)), rel=1e-12)


@given(st.floats(0.76, 0.99))
def test_a_knee_anywhere_in_a_panel_is_seen(where: float) -> None:
    """The points that check a parabola leave no place for a knee to hide: durations are right to 1e-9 everywhere."""

    class Hidden(Knee):
        def at(self, context_tokens: float) -> float:
            return 1.0 + max(0.0, context_tokens - 131_072 * where) / 1000

    for tokens in range(int(131_072 * where) - 4000, int(131_072 * where) + 4000, 37):
        leap = DecodeSteps(Hidden(), 1).leap(tokens, 1, 0.0)
        assert end_s(leap, 1) == pytest.approx(Hidden().at(tokens), rel=1e-9)


def test_steps_that_take_no_time_are_one_leap() -> None:
    """A linear model may have nothing but zeros."""
    leap = DecodeSteps(LinearDecodeCurve(0.0, 0.0), 3).leap(5000, 10, 7.0)
    assert (leap.num_steps, end_s(leap, 10), num_launched_before(leap, 7.5, 1)) == (10, 7.0, 10)
