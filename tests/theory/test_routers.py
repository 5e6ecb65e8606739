"""Routers before exponential servers: waits are those of the queues that each rule makes of a Poisson stream."""

from heapq import heapreplace
from itertools import pairwise

import numpy as np
import pytest

from tests.theory.chains import Joins, Waits, any_queue, shorter_of_two, shortest_queue, waits
from tests.theory.fleets import Servers, serve
from tests.theory.queues import Floats, assert_mean, assert_positive


def test_a_chain_whose_queues_are_joined_at_random_is_m_m_1() -> None:
    """What other chains are solved with gives rho / (1 - rho), and rho, where that is known."""
    assert waits(2, 0.7, any_queue, longest=60) == pytest.approx(Waits(0.7 / 0.3, 0.7), rel=1e-6)


def test_random_makes_independent_m_m_1_queues() -> None:
    """P(wait > t) = rho exp(-(1 - rho) t) at each; and both are busy for rho^2 of the time."""
    rho = 0.5
    found = serve("random", 2, rho)
    assert_mean(found.wait_s, rho / (1 - rho))
    for replica in (0, 1):
        waits = found.wait_s[found.replica == replica]
        for time_s in (0, 1):
            assert_mean((waits > time_s).astype(float), rho * np.exp(-(1 - rho) * time_s))
    assert_mean(found.found_busy(0) * found.found_busy(1), rho**2)


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_round_robin_makes_queues_with_erlang_arrivals(num_replicas: int) -> None:
    """E_k/M/1 (Kleinrock I, ch. 6.4): P(wait > t) = s exp(-(1 - s) t), where s is the transform of the gaps at 1 - s."""
    rho = 0.6
    found, rate, share = serve("round_robin", num_replicas, rho), num_replicas * rho, rho
    for _ in range(200):
        share = (rate / (rate + 1 - share)) ** num_replicas
    assert_mean(found.wait_s, share / (1 - share))
    for time_s in (0, 1):
        assert_mean((found.wait_s > time_s).astype(float), share * np.exp(-(1 - share) * time_s))


@pytest.mark.parametrize(
    ("router", "num_replicas", "joins"),
    [
        ("least_loaded", 2, shortest_queue),
        ("least_loaded", 3, shortest_queue),
        ("power_of_two", 2, shortest_queue),
        ("power_of_two", 3, shorter_of_two),
    ],
)
def test_the_shorter_queue_is_joined(router: str, num_replicas: int, joins: Joins) -> None:
    """Of all, or of two that are drawn, which of two replicas are both."""
    found, expected = serve(router, num_replicas, 0.6), waits(num_replicas, 0.6, joins, longest=20)
    assert_mean(found.wait_s, expected.mean)
    assert_mean((found.wait_s > 0).astype(float), expected.share)


def test_two_choices_among_many_replicas_reach_the_fixed_point() -> None:
    """Mitzenmacher 2001: a share rho^(2^k - 1) of queues is at least k long; n queues add to waits as 1 / n, known of four."""
    rho, num_replicas = 0.7, 32
    limit = sum(rho ** (2**k - 2) for k in range(1, 12)) - 1
    added_by_four = waits(4, rho, shorter_of_two, longest=16).mean - limit
    assert_mean(
        serve("power_of_two", num_replicas, rho, num_requests=20_000).wait_s, limit + added_by_four * 4 / num_replicas
    )


def test_the_more_a_router_knows_the_shorter_is_the_wait() -> None:
    """One queue for all < the shortest < the shorter of two < round robin < random, request by request of the same ones."""
    rho, num_replicas = 0.8, 4
    routers = ("least_loaded", "power_of_two", "round_robin", "random")
    found = [serve(router, num_replicas, rho, num_requests=12_000) for router in routers]
    waits_s = [one_queue(found[0], num_replicas), *(servers.wait_s for servers in found)]
    for shorter, longer in pairwise(waits_s):
        assert_positive(longer - shorter)


def one_queue(servers: Servers, num_servers: int) -> Floats:
    """The waits of the same requests, had each server taken the next one when it was free."""
    free_s, waits_s = [0.0] * num_servers, []
    for arrival_s, service_s in zip(servers.arrival_s, servers.finish_s - servers.start_s, strict=True):
        start_s = max(arrival_s, free_s[0])
        heapreplace(free_s, start_s + service_s)
        waits_s.append(start_s - arrival_s)
    return np.array(waits_s)
