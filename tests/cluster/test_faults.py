"""Outages, retries and circuit breakers, by worked examples."""

from itertools import islice
from random import Random

import pytest

from sim.cluster.backoff import BackoffOptions, backoff_s
from sim.cluster.circuit_breaker import Circuit, CircuitBreaker, CircuitBreakerOptions
from sim.cluster.dynamics import Dynamics
from sim.cluster.faults import DrawnFault, Outage, ScriptedFault, parse_faults
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.errors import ConfigError
from tests.makers import ONE_SECOND, Ask, make_config, make_trace


def test_a_scripted_fault_is_that_of_one_replica() -> None:
    (fault,) = parse_faults([{"at_s": 100, "replica": 2, "for_s": 60}])
    assert fault == ScriptedFault(100.0, 2, 60.0)
    assert [list(fault.outages(number, 0, 0)) for number in (1, 2)] == [[], [Outage(100.0, 60.0)]]


def test_drawn_times_are_exponential_and_the_seed_s() -> None:
    """The mean of 20,000 exponential times has a relative standard error of 0.7 %."""
    (fault,) = parse_faults([{"mtbf_s": 1000, "mttr_s": 50}])
    drawn = list(islice(fault.outages(3, 7, 0), 20_000))
    assert sum(outage.after_s for outage in drawn) / 20_000 == pytest.approx(1000, rel=0.03)
    assert sum(outage.for_s for outage in drawn) / 20_000 == pytest.approx(50, rel=0.03)
    assert sum(outage.after_s > 1000 for outage in drawn) / 20_000 == pytest.approx(0.3679, abs=0.02)
    assert list(islice(fault.outages(3, 7, 0), 5)) == drawn[:5]
    assert [next(fault.outages(*key)) for key in ((2, 7, 0), (3, 8, 0), (3, 7, 1))].count(drawn[0]) == 0


def test_a_slow_node_is_no_loss() -> None:
    assert parse_faults([{"mtbf_s": 10, "mttr_s": 5, "slow": 2}]) == (DrawnFault(10.0, 5.0, 2.0),)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"at_s": 3}, "faults must be a list"),
        (["lost"], r"faults\[0\] must be a mapping"),
        ([{"at_s": 3}], r"faults\[0\]: replica must be given"),
        ([{"at_s": 3, "replica": 0}, {"mtbf_s": 3}], r"faults\[1\]: mttr_s must be given"),
        ([{"at_s": -3, "replica": 0}], r"faults\[0\]: at_s must be a number of at least 0, got -3"),
        ([{"at_s": 3, "replica": 0, "slow": 0.5}], "slow must be a number of at least 1, got 0.5"),
        ([{"at_s": 3, "replica": 0, "fors": 5}], "has no option 'fors'.*Did you mean for_s"),
    ],
)
def test_an_error_names_the_fault_and_its_rule(given: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_faults(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("at_s", [5, 6])
def test_what_comes_back_at_the_instant_of_a_loss_has_come_back(at_s: int, *, is_async: bool) -> None:
    """One token a second, be the steps certain or not: the token of that second is returned."""
    config = make_config(num_gpu_blocks=30, block_size=2, max_num_batched_tokens=100, async_scheduling=is_async)
    changes = Dynamics.parse({"faults": [{"at_s": at_s, "replica": 0}], "recovery": {"lost": "fail"}})
    plan = FleetPlan.alike(config, ONE_SECOND, 1, "round_robin", dynamics=changes)
    found = simulate(make_trace([Ask("a", 4, 20)]), plan).merged.requests
    assert found.generated_tokens.tolist() == [at_s]


def test_a_preemption_just_before_a_loss_is_counted_with_the_last_step_before_it() -> None:
    """The second pass, at once, preempts who needs the block that the first one's request holds, and runs nothing."""
    config = make_config(num_gpu_blocks=4, block_size=1, max_num_seqs=2, async_scheduling=True, max_model_len=4)
    changes = Dynamics.parse({"faults": [{"at_s": 1, "replica": 0, "for_s": 0}], "recovery": {"lost": "fail"}})
    plan = FleetPlan.alike(config, ONE_SECOND, 1, "round_robin", dynamics=changes)
    found = simulate(make_trace([Ask("a", 2, 1), Ask("b", 1, 2), Ask("behind it", 1, 1, 60.0)]), plan)
    for records in (found.replicas[0], found.merged):
        assert records.steps.start_s.tolist() == [0, 60]
        assert records.steps.num_preempted.tolist() == [1, 0]


RNG = Random(0)  # noqa: S311 - a simulation's draws


def test_retries_wait_half_as_long_again_each_time_up_to_30_s() -> None:
    plain = BackoffOptions(jitter=0.0)
    assert [backoff_s(number, plain, RNG) for number in (0, 1, 2, 40)] == pytest.approx([0.05, 0.075, 0.1125, 30.0])


def test_jitter_is_a_fifth_on_both_sides() -> None:

    drawn = [backoff_s(0, BackoffOptions(), RNG) for _ in range(2000)]
    assert 0.04 <= min(drawn) < 0.041
    assert 0.059 < max(drawn) <= 0.06


def test_a_circuit_opens_after_ten_failures_in_two_minutes() -> None:
    breaker = CircuitBreaker(CircuitBreakerOptions())
    for number in range(9):
        breaker.failed(float(number))
    breaker.failed(120.5)  # the one at 0 s no longer counts
    assert breaker.state(120.5) is Circuit.CLOSED
    breaker.failed(120.6)
    assert breaker.state(120.6) is Circuit.OPEN
    assert breaker.state(180.5) is Circuit.OPEN
    assert breaker.state(180.6) is Circuit.HALF_OPEN


def test_a_half_open_circuit_closes_after_three_successes_or_opens_at_a_failure() -> None:
    breaker = CircuitBreaker(CircuitBreakerOptions(failures=1))
    breaker.failed(0.0)
    breaker.succeeded(60.0)
    breaker.succeeded(61.0)
    breaker.failed(62.0)
    assert breaker.state(121.9) is Circuit.OPEN
    for now_s in (122.0, 123.0):
        breaker.succeeded(now_s)
        assert breaker.state(now_s) is Circuit.HALF_OPEN
    breaker.succeeded(124.0)
    assert breaker.state(124.0) is Circuit.CLOSED
