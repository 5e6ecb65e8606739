"""A trace at a rate of its user's choosing keeps its pattern."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError, TraceError
from sim.workload.rates import at_request_rate, rate_json
from sim.workload.readers import as_trace, read_trace
from tests.workload.makers import make_trace


def test_n_requests_arrive_over_n_by_rate_seconds() -> None:
    """Three at 6 a second take half a second; gaps of 1 and 3 stay 1 to 3; the first comes at 0."""
    trace = at_request_rate(make_trace((10.0, 11.0, 14.0)), 6.0)
    assert trace.arrival_s.tolist() == [0.0, 0.125, 0.5]


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=30).map(sorted), st.floats(1e-3, 1e9))
def test_the_pattern_is_the_same_at_any_rate(times: list[float], rate: float) -> None:
    """Order and proportions stay; a trace at the rate that it has already is left as it is."""
    trace = make_trace(times)
    if trace.duration_s == 0:
        return
    there = at_request_rate(trace, rate)
    assert there.duration_s == pytest.approx(len(times) / rate)
    shares = (trace.arrival_s - trace.arrival_s[0]) / trace.duration_s
    np.testing.assert_allclose(there.arrival_s / there.duration_s, shares, atol=1e-12)
    np.testing.assert_allclose(at_request_rate(there, rate).arrival_s, there.arrival_s, rtol=1e-12)


def test_an_infinite_rate_sends_all_at_once() -> None:
    """Also what came at once before; JSON says it as vllm bench does."""
    assert at_request_rate(make_trace((5.0, 7.0)), math.inf).arrival_s.tolist() == [0.0, 0.0]
    assert at_request_rate(make_trace((1.0, 1.0)), math.inf).arrival_s.tolist() == [0.0, 0.0]
    assert [rate_json(rate) for rate in (None, 2.5, math.inf)] == [None, 2.5, "inf"]


def test_a_lone_request_has_any_rate() -> None:
    """It comes at 0."""
    assert at_request_rate(make_trace((7.0,)), 3.0).arrival_s.tolist() == [0.0]


def test_what_comes_at_once_has_no_pattern() -> None:
    with pytest.raises(TraceError, match="all 2 requests come at once"):
        at_request_rate(make_trace((1.0, 1.0)), 3.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, 1e-300, -math.inf])
def test_a_rate_that_no_traffic_has_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="`request_rate` must be above 0"):
        at_request_rate(make_trace(), rate)


def test_the_rate_is_that_of_the_requests_kept() -> None:
    """`limit` cuts first: two at 4 a second take half a second, from a file or in memory."""
    trace = make_trace((0.0, 1.0, 9.0))
    assert as_trace(trace, limit=2, request_rate=4.0).arrival_s.tolist() == [0.0, 0.5]
    assert read_trace("chat", limit=8, request_rate=4.0).duration_s == pytest.approx(2.0)


def test_two_rates_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="both set the rate; leave one of them out"):
        as_trace(make_trace(), rate_scale=2.0, request_rate=4.0)
