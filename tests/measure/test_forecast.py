"""A forecast replays at both ends of its band, and says when and until where the deployment is at its limit."""

from collections.abc import Mapping
from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.measure.confidence import STARTING, Bands, Confidence
from sim.measure.forecast import forecast

RATE = 10.0


def sure(step: float = 0.05, **changes: float) -> Confidence:
    bands = Bands(step=step, ttft=0.02, p95=0.02, p99=0.02, blocks=0.0)._replace(**changes)
    return Confidence("validated", (), (), 9, bands)


def queue(factor: float, rate_share: float, *, busy: float) -> Mapping[str, Any]:
    """Waiting as in M/M/1: a step of 10 ms, and a queue that grows without bound as `busy` nears 1."""
    load = busy * factor * rate_share
    wait_ms = 10 * factor * load / (1 - load) if load < 1 else 1e6
    return {
        "p99_ttft_ms": 10 * factor + wait_ms,
        "p99_tpot_ms": 10 * factor,
        "p99_itl_ms": 10 * factor,
        "output_throughput": 100 * rate_share,
        "duration": 3600.0,
    }


def at(busy: float, confidence: Confidence | None = None, rate: float | None = RATE) -> dict[str, Any]:
    def replay(factor: float, rate_share: float) -> Mapping[str, Any]:
        return queue(factor, rate_share, busy=busy)

    return forecast(confidence or sure(), replay(1.0, 1.0), replay, request_rate=rate)


def test_intervals_are_those_of_the_ends() -> None:
    """Far from the limit P99s move as step times do, and nothing more is said."""
    found = at(busy=0.3)
    assert found["level"] == "validated"
    low, high = found["intervals"]["p99_tpot_ms"]
    assert low == pytest.approx(10 * 0.95, rel=0.02)
    assert high == pytest.approx(10 * 1.05, rel=0.02)
    assert "at_limit" not in found


def test_at_its_limit_it_says_so_and_until_where() -> None:
    """Step times 5 % longer double the wait; at the rate given they would not, a bit above it they would."""
    found = at(busy=0.92)
    low, high = found["intervals"]["p99_ttft_ms"]
    assert high > 2 * low
    limit = found["at_limit"]
    assert limit["metric"] == "p99_ttft_ms"
    assert "runs at its limit at 10 requests/s; at " in limit["text"]
    assert 0 < limit["steady_request_rate"] < RATE
    share = limit["steady_request_rate"] / RATE
    assert "at_limit" not in at(busy=0.92 * share)
    assert "at_limit" in at(busy=0.92 * (share + 0.15))


def test_without_a_rate_there_is_none_to_lower() -> None:
    """All requests at once."""
    limit = at(busy=0.95, rate=None)["at_limit"]
    assert limit["steady_request_rate"] is None
    assert limit["text"].endswith("all requests come at once")


def test_a_band_that_is_wide_by_itself_is_no_limit() -> None:
    """Where little like it was measured, that is the reason and no rate is sought."""
    limit = at(busy=0.1, confidence=sure(p99=0.9))["at_limit"]
    assert limit["steady_request_rate"] is None
    assert "limit" not in limit["text"]
    assert limit["text"].endswith("too little like it was measured")


def test_given_step_times_are_taken_as_a_tenth_off() -> None:
    """Nobody has measured their errors."""
    found = forecast(None, queue(1, 1, busy=0), lambda f, r: queue(f, r, busy=0), request_rate=RATE)
    assert (found["level"], found["text"]) == ("unknown", "step times as given")
    assert found["intervals"]["p99_tpot_ms"] == pytest.approx([10 / 1.1, 11])


def test_what_cannot_be_replayed_with_other_step_times_has_no_intervals() -> None:
    """The figures as modelled stand; the line says why."""

    def replay(_: float, __: float) -> Mapping[str, Any]:
        raise ConfigError("requests preempt each other for ever.")

    found = forecast(sure(), queue(1, 1, busy=0), replay, request_rate=RATE)
    assert found["intervals"] == {}
    assert "requests preempt each other for ever." in found["text"]


@pytest.mark.parametrize(("rate_scale", "starts"), [(1.0, True), (0.002, False)])
def test_a_server_of_experts_that_starts_may_be_much_slower_at_first(rate_scale: float, starts: bool) -> None:
    """The second of 150 requests comes in the first seconds, or, at a rate of one in a hundred seconds, when all is compiled."""
    found = sim.simulate("Mixtral-8x7B-v0.1", "h200-sxm", "chat", limit=150, rate_scale=rate_scale).summary
    high = found["confidence"]["intervals"]["p99_e2el_ms"][1]
    assert (high > 1.5 * found["p99_e2el_ms"]) == starts
    assert (STARTING in found["confidence"]["reasons"]) == starts
    assert found["confidence"]["intervals"]["p90_e2el_ms"][1] < 1.2 * found["p90_e2el_ms"]
