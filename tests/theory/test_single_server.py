"""Few seats, constant steps: waits are those of queueing theory (Kleinrock, Queueing Systems I, ch. 5, and II, ch. 3)."""

import math

import numpy as np
import pytest

from tests.engines import Engine
from tests.theory.queues import assert_mean, serve

NUM_REQUESTS = 12_000


@pytest.mark.parametrize(("rho", "service_s"), [(0.5, 1), (0.7, 3)])
def test_fixed_lengths_wait_as_in_an_m_d_1_queue(engine: Engine, rho: float, service_s: int) -> None:
    """Mean wait = rho S / (2 (1 - rho))."""
    queue = serve(engine, rho / service_s, np.full(NUM_REQUESTS, service_s))
    assert_mean(queue.wait_s, rho * service_s / (2 * (1 - rho)))


def test_random_lengths_wait_as_pollaczek_and_khinchine_say(engine: Engine) -> None:
    """Mean wait = rate E[S^2] / (2 (1 - rho)), here with 1 or 6 s at even odds and rho = 0.6."""
    service_s = np.random.default_rng(1).choice([1, 6], NUM_REQUESTS)
    rate = 0.6 / 3.5
    assert_mean(serve(engine, rate, service_s).wait_s, rate * (1 + 36) / 2 / (2 * (1 - 0.6)))


def test_each_wait_follows_from_the_one_before(engine: Engine) -> None:
    """Lindley: wait' = max(0, wait + service - time to the next arrival), request by request."""
    service_s = np.random.default_rng(2).integers(1, 7, 2_000)
    queue = serve(engine, 0.27, service_s)
    wait = 0.0
    for gap, service, got in zip(np.diff(queue.trace.arrival_s), service_s, queue.wait_s[1:], strict=False):
        wait = max(0.0, wait + service - gap)
        assert got == pytest.approx(wait, abs=1e-6)


def test_urgent_requests_wait_less_by_cobhams_formula(engine: Engine) -> None:
    """Two classes without preemption: R / (1 - rho1) and R / ((1 - rho1) (1 - rho)), with R = rate E[S^2] / 2."""
    rng = np.random.default_rng(3)
    priority = rng.integers(0, 2, NUM_REQUESTS)
    service_s = np.where(priority == 0, 1, 3)
    rate = 0.7 / 2
    queue = serve(engine, rate, service_s, priority=priority)
    rest = rate * (1 + 9) / 2 / 2
    urgent = rate / 2 * 1
    assert_mean(queue.wait_s[priority == 0], rest / (1 - urgent))
    assert_mean(queue.wait_s[priority == 1], rest / ((1 - urgent) * (1 - 0.7)))


def test_the_seat_is_taken_for_rho_of_the_time(engine: Engine) -> None:
    """Busy time over the whole is rate x service time, give or take what Poisson arrivals vary: 4 / sqrt(n)."""
    queue = serve(engine, 0.2, np.full(NUM_REQUESTS, 3))
    steps = queue.records.steps
    busy = float((steps.end_s - steps.start_s).sum())
    assert busy == pytest.approx(3 * NUM_REQUESTS)
    assert busy / steps.end_s[-1] == pytest.approx(0.6, rel=4 / np.sqrt(NUM_REQUESTS))


@pytest.mark.parametrize(("num_seats", "rho"), [(2, 0.6), (4, 0.7)])
def test_several_seats_are_an_m_m_c_queue(engine: Engine, num_seats: int, rho: float) -> None:
    """P(wait > t) = C exp(-c (1 - rho) t / S) with Erlang's C; at t = 1 s, the most that a step under way holds anyone up, and S / c."""
    service_s = np.random.default_rng(6).geometric(1 / 200, NUM_REQUESTS)
    load = num_seats * rho
    queue = serve(engine, load / 200, service_s, max_num_seqs=num_seats)
    some_free = sum(load**busy / math.factorial(busy) for busy in range(num_seats))
    all_busy = load**num_seats / math.factorial(num_seats) / (1 - rho)
    for time_s in (1.0, 200 / num_seats):
        expected = all_busy / (some_free + all_busy) * math.exp(-num_seats * (1 - rho) * time_s / 200)
        assert_mean((queue.wait_s > time_s).astype(float), expected)
