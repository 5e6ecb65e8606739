"""Limits on percentiles, and what is optimised."""

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.metrics.slo import measured_ms
from sim.search.evaluate import Task
from sim.search.objectives import pareto, parse_target
from sim.specs.slo import parse_slo, parse_slos
from tests.metrics.makers import make_records
from tests.search.makers import make_scenario

BAD_OBJECTIVES = {
    "speed": "one of throughput",
    "throughputs": "Did you mean throughput",
    "cost,cost": "twice",
    "": "one of",
}


@pytest.mark.parametrize(("text", "said"), BAD_OBJECTIVES.items(), ids=BAD_OBJECTIVES)
def test_a_bad_objective_says_what_there_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_target(text, ())


def test_goodput_needs_limits_on_single_requests() -> None:
    """None at all, or one on gaps that are not kept by request, cannot be judged."""
    with pytest.raises(ConfigError, match="give some"):
        parse_target("goodput", ())
    with pytest.raises(ConfigError, match="limit tpot"):
        parse_target("goodput", parse_slos(["itl_p99=1s"]))


def test_any_percentile_is_that_of_numpy() -> None:
    """p73 of the end-to-end latency, against the records themselves."""
    scenario = make_scenario(slo=("e2el_p73=1s",))
    requests = scenario.replay(scenario.trace, scenario.deploy_fleet({})).merged.requests
    expected = np.percentile(requests.finish_s - requests.arrival_s, 73) * 1e3
    assert scenario.try_out(Task({})).metrics["p73_e2el_ms"] == pytest.approx(expected)


def test_goodput_counts_requests_within_every_limit() -> None:
    """By hand from the records: both limits hold for the request."""
    scenario = make_scenario(objective="goodput", slo=("ttft_p99=40ms", "e2el_p99=1.5s"))
    requests = scenario.replay(scenario.trace, scenario.deploy_fleet({})).merged.requests
    ttft_s, e2el_s = requests.first_token_s - requests.arrival_s, requests.finish_s - requests.arrival_s
    metrics = scenario.try_out(Task({})).metrics
    good = int(((ttft_s <= 0.04) & (e2el_s <= 1.5)).sum())
    assert 0 < good < len(requests)
    assert metrics["request_goodput"] == pytest.approx(good / metrics["duration"])


def test_a_pareto_set_has_no_row_that_another_beats() -> None:
    """(2, 2) loses to (1, 2), the second (1, 3) adds nothing to the first."""
    assert pareto([(1.0, 3.0), (2.0, 2.0), (1.0, 2.0), (3.0, 1.0), (1.0, 3.0)]) == [2, 3]


def test_requests_of_one_token_have_no_time_between_tokens() -> None:
    """Steps were recorded, and none of them continued a request."""
    assert measured_ms(parse_slo("itl_p99=50ms"), make_records(itl_s={0.02: 0})) is None
