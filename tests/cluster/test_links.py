"""Transfers share links as a fluid does."""

from fractions import Fraction

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.cluster.links import Links, Port, fair_rates
from tests.properties import engine_examples as examples
from tests.reference.links import Flow, finish_times

NAMES = ("p0", "p1", "p2", "d0", "d1")
CAPACITY = {"p0": 3, "p1": 5, "p2": 7, "d0": 4, "d1": 9}
sent = st.tuples(
    st.integers(0, 40),
    st.sampled_from([("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1"), ("p2", "d0"), ("p2",)]),
    st.integers(0, 60),
)


def arrivals_of(sends: list[tuple[int, tuple[str, ...], int]], ports: dict[str, Port]) -> list[float]:
    """When each transfer's last byte arrives."""
    env = simpy.Environment()
    links = Links(env)
    ends_s = [0.0] * len(sends)

    def one(number: int) -> Process:
        start_s, path, num_bytes = sends[number]
        yield At(env, start_s, ARRIVAL)
        yield links.send([ports[name] for name in path], num_bytes)
        ends_s[number] = env.now

    for number in range(len(sends)):
        env.process(one(number))
    env.run()
    return ends_s


def ports() -> dict[str, Port]:
    return {name: Port(name, CAPACITY[name]) for name in NAMES}


@examples(150)
@given(st.lists(sent, min_size=1, max_size=8))
def test_transfers_end_as_those_of_an_exact_fluid(sends: list[tuple[int, tuple[str, ...], int]]) -> None:
    """Whatever begins when and goes where."""
    flows = [Flow(Fraction(start), path, Fraction(num_bytes)) for start, path, num_bytes in sends]
    exact = finish_times(flows, {name: Fraction(rate) for name, rate in CAPACITY.items()})
    assert arrivals_of(sends, ports()) == pytest.approx([float(end) for end in exact], rel=1e-9)


@examples(100)
@given(st.lists(st.sampled_from([("p0", "d0"), ("p0", "d1"), ("p1", "d1"), ("p2", "d0")]), min_size=1, max_size=9))
def test_no_port_is_overrun_and_each_transfer_fills_one(paths: list[tuple[str, ...]]) -> None:
    """Max-min fairness: nobody could be faster without a slower or equal one losing."""
    there = ports()
    routes = [[there[name] for name in path] for path in paths]
    rates = fair_rates(routes)
    used = {
        port: sum(rate for rate, route in zip(rates, routes, strict=True) if port in route) for port in there.values()
    }
    assert all(rate <= port.bytes_per_s * (1 + 1e-12) for port, rate in used.items())
    for rate, route in zip(rates, routes, strict=True):
        full = [port for port in route if used[port] == pytest.approx(port.bytes_per_s)]
        others = [[r for r, way in zip(rates, routes, strict=True) if port in way] for port in full]
        assert any(rate >= max(theirs) * (1 - 1e-12) for theirs in others)


def test_two_at_once_share_and_the_second_speeds_up_when_the_first_has_ended() -> None:
    """10 and 20 bytes over 5 a second: half each until 4 s, then the rest alone."""
    there = {"p0": Port("p0", 5.0)}
    assert arrivals_of([(0, ("p0",), 10), (0, ("p0",), 20)], there) == [4.0, 6.0]
    assert there["p0"].moved_bytes == 30
    assert there["p0"].busy_s == 6.0
