"""Limits on latencies, and which requests of a run are within them."""

import pytest

from sim.errors import ConfigError
from sim.metrics.slo import slo_figures
from sim.specs.slo import Slo, judged_by_request, parse_slo, parse_slos
from tests.metrics.makers import Life, make_records

BAD_SLOS = {
    "ttft_p99": "must look like",
    "ttft_p99=500": "must look like",
    "ttft_p99=500m": "must look like",
    "ttft_p101=1s": "from 0 to 100",
    "ttf_p99=1s": "Did you mean ttft",
    "tpot_p50=0ms": "above 0",
}


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft_p99=500ms", Slo("ttft", 99.0, 0.5)),
        (" E2EL_P99.9 = 2s ", Slo("e2el", 99.9, 2.0)),
        ("itl_p0<=1.5ms", Slo("itl", 0.0, 0.0015)),
    ],
)
def test_a_limit_names_latency_percentile_and_unit(text: str, slo: Slo) -> None:
    """In any case, with milliseconds or seconds."""
    found = parse_slo(text)
    assert found[:2] == slo[:2]
    assert found.limit_s == pytest.approx(slo.limit_s)


@pytest.mark.parametrize(("text", "said"), BAD_SLOS.items(), ids=BAD_SLOS)
def test_a_bad_limit_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_slo(text)


def test_a_percentile_is_limited_once() -> None:
    with pytest.raises(ConfigError, match="ttft_p99 twice"):
        parse_slos(["ttft_p99=1s", "ttft_p99=2s"])


QUICK = Life(first_token_s=0.1, finish_s=1.1, output_tokens=11)  # 100 ms a token
SLOW = Life(first_token_s=0.9, finish_s=1.9, output_tokens=11)
REJECTED = Life(rejected="too long")
FAST_START = Slo("ttft", 99.0, 0.5)


def test_a_request_is_good_if_each_latency_is_within_its_limit() -> None:
    """One of four starts in time; one that is rejected is not good; the percentile that a limit names plays no part."""
    records = make_records(QUICK, SLOW, SLOW, REJECTED)
    for percentile in (50.0, 99.0):
        found = slo_figures((Slo("ttft", percentile, 0.5),), records, 2.0)
        assert (found["request_goodput"], found["slo_attainment"]) == (0.5, 0.25)


def test_of_two_limits_on_one_latency_the_tighter_one_counts() -> None:
    """Half the requests below 50 ms and nearly all below 1 s: a request above 50 ms breaks the first."""
    slos = parse_slos(["ttft_p50=50ms", "ttft_p99=1s"])
    assert slo_figures(slos, make_records(QUICK, SLOW), 2.0)["slo_attainment"] == 0.0


def test_a_request_of_one_token_keeps_every_limit_on_time_per_token() -> None:
    """It has no time per further token, so that its first token and its end decide."""
    one_token = Life(first_token_s=0.1, finish_s=0.1, output_tokens=1)
    slos = (FAST_START, Slo("tpot", 99.0, 0.05))
    assert slo_figures(slos, make_records(one_token, QUICK), 2.0)["slo_attainment"] == 0.5


def test_what_was_not_served_makes_a_percentile_infinite() -> None:
    """One of four never answers: the P99 over all is infinite, null in JSON; over those served it is that of the slow ones."""
    found = slo_figures((FAST_START,), make_records(QUICK, SLOW, SLOW, REJECTED), 2.0)
    assert found["slo_ttft_p99_ms"] is None
    assert found["p99_ttft_ms"] == pytest.approx(900)


def test_a_run_in_which_nothing_completed_has_no_goodput() -> None:
    """It took no time that requests could be counted in, and none of them is good."""
    found = slo_figures((FAST_START,), make_records(REJECTED), None)
    assert (found["request_goodput"], found["slo_attainment"]) == (None, 0.0)


def test_gaps_between_tokens_judge_no_single_request() -> None:
    """They are not kept by request: their percentile is known, goodput is not."""
    slos = parse_slos(["itl_p99=1s"])
    assert "request_goodput" not in slo_figures(slos, make_records(QUICK), 2.0)
    with pytest.raises(ConfigError, match=r"--slo itl_p99=1000ms: .* limit tpot instead"):
        judged_by_request(slos)
