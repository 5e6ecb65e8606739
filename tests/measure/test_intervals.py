"""Intervals hold the point and what replays with other step times gave; unexplained errors are added as independent ones."""

from math import exp, hypot, log

import pytest

from sim.measure.confidence import Bands
from sim.measure.intervals import ends, intervals

STEP_ONLY = Bands(step=0.1, ttft=0.0, p95=0.0, p99=0.0, blocks=0.0)


def test_ends_are_as_far_down_as_up() -> None:
    """Factors whose product is one."""
    low, high = ends(STEP_ONLY)
    assert (low, high) == pytest.approx((exp(-0.1), exp(0.1)))


def test_replays_alone() -> None:
    """The least and the most of the three, whichever replay gave it; what is no number in all has no interval."""
    point = {"mean_tpot_ms": 10.0, "output_throughput": 90.0, "completed": 5, "p99_ttft_ms": None, "gpu": "l4"}
    low = {"mean_tpot_ms": 9.0, "output_throughput": 95.0, "completed": 5, "p99_ttft_ms": None}
    high = {"mean_tpot_ms": 11.5, "output_throughput": 91.0, "completed": 5, "p99_ttft_ms": 7.0}
    assert intervals(point, low, high, STEP_ONLY) == {
        "mean_tpot_ms": [9.0, 11.5],
        "output_throughput": [90.0, 95.0],
        "completed": [5, 5],
    }


def test_first_tokens_and_slow_requests_have_errors_of_their_own() -> None:
    """Independent of the steps', so their squares add; the end of a request has the first token's as far as that is part of it."""
    bands = Bands(step=0.1, ttft=0.2, p95=0.0, p99=0.3, blocks=0.01)
    point = {"ttft_mean": 100.0, "e2el_mean": 1000.0, "ttft_p99": 200.0, "e2el_p99": 2000.0, "num_gpu_blocks": 1000.0}
    higher = {name: 1.1 * value for name, value in point.items()} | {"num_gpu_blocks": 1000.0}
    found = intervals(point, point, higher, bands)
    assert found["ttft_mean"] == pytest.approx([100 * exp(-0.2), 100 * exp(hypot(log(1.1), 0.2))])
    assert found["ttft_p99"] == pytest.approx([200 * exp(-0.2), 200 * exp(hypot(log(1.1), 0.2, 0.3))])
    assert found["e2el_mean"][0] == pytest.approx(1000 * exp(-(exp(0.2) - 1) / 10))
    assert found["num_gpu_blocks"] == pytest.approx([1000 * exp(-0.01), 1000 * exp(0.01)])


def test_what_is_not_simulated_only_delays() -> None:
    """A slow spell of the server makes the slowest requests slower, so their own bands are at the high end alone."""
    bands = Bands(step=0.1, ttft=0.0, p95=0.2, p99=0.3, blocks=0.0)
    point = {"p99_tpot_ms": 20.0, "p95_e2el_ms": 500.0, "p90_e2el_ms": 400.0}
    found = intervals(point, point, point, bands)
    assert found["p99_tpot_ms"] == pytest.approx([20, 20 * exp(0.3)])
    assert found["p95_e2el_ms"] == pytest.approx([500, 500 * exp(0.2)])
    assert found["p90_e2el_ms"] == [400, 400]


def test_a_client_may_see_tokens_later() -> None:
    """First tokens and ends of requests, at the high end alone; gaps between tokens are as they were."""
    point = {"mean_ttft_ms": 50.0, "mean_e2el_ms": 500.0, "mean_tpot_ms": 8.0, "std_ttft_ms": 3.0}
    found = intervals(point, point, point, STEP_ONLY, late_ms=7.0)
    assert found == {
        "mean_ttft_ms": [50, 57],
        "mean_e2el_ms": [500, 507],
        "mean_tpot_ms": [8, 8],
        "std_ttft_ms": [3, 3],
    }


def test_zeros_stay() -> None:
    """There is no factor between nothing and something; nothing divides by it."""
    point = {"p99_ttft_ms": 0.0, "p99_e2el_ms": 0.0, "num_preemptions": 0}
    high = {"p99_ttft_ms": 1.0, "p99_e2el_ms": 1.0, "num_preemptions": 4}
    found = intervals(point, point, high, Bands(0.1, 0.2, 0.3, 0.3, 0.0))
    assert found == {"p99_ttft_ms": [0, 1], "p99_e2el_ms": [0, 1], "num_preemptions": [0, 4]}
