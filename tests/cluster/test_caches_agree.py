"""What replicas say they hold of a prompt, at any instant, is what naive ones hold then."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan, ServerPlan
from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers import table
from sim.cluster.routers.router import Fleet, Router, RouterOptions
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.rank_group import LockStepRules
from sim.engine.request import Request
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import closed_loops, panel_bits
from tests.cluster.test_servers_agree import assert_answers_are_those_of_naive_ones, layouts
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference import routers as naive
from tests.reference.cluster import simulate_cluster
from tests.reference.replica import Replica as NaiveReplica
from tests.reference.request import Request as NaiveRequest
from tests.workloads import SINCE_0_12, configs, conversations, step_times, traces

Seen = list[tuple[float, int, list[int]]]
"""When a request came, its row, and how many leading blocks of its prompt each replica held."""


@dataclass(frozen=True)
class Looking(RouterOptions):
    """Sends requests from the `first` replica on to others by a `stride`, and looks at all caches before; replicas catch up in another way if it `listens`."""

    seen: ClassVar[Seen]
    listens: bool = option(False)
    first: int = option(0)
    stride: int = option(1)

    def router(self, fleet: Fleet) -> Router:  # noqa: ARG002 - an interface
        return LookingRouter(self)


class LookingRouter(Router):
    def __init__(self, options: Looking) -> None:
        self.listens = options.listens
        self._seen = options.seen
        self._options = options

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        held = [replica.num_cached_blocks(request) for replica in replicas]
        self._seen.append((request.arrival_s, request.index, held))
        return replicas[(self._options.first + self._options.stride * (len(self._seen) - 1)) % len(replicas)]


class NaiveLooking(naive.Router):
    """The same at naive replicas."""

    seen: ClassVar[Seen]

    def choose(self, request: NaiveRequest, replicas: Sequence[NaiveReplica]) -> int:
        size = self.config.block_size
        held = [max(_num_held(engine, request) for engine in replica.engines) // size for replica in replicas]
        self.seen.append((request.arrival_s, request.index, held))
        first, stride = self.options.get("first", 0), self.options.get("stride", 1)
        return int(first + stride * (len(self.seen) - 1)) % len(replicas)


def _num_held(replica: NaiveReplica, request: NaiveRequest) -> int:
    return replica.scheduler.kv.held_prefix(request).num_tokens


@contextmanager
def looking() -> Iterator[None]:
    """With a router that looks, whose replicas leap, and one whose are naive; both must see the same."""
    Looking.seen, NaiveLooking.seen = [], []
    with patch.dict(table.ROUTERS, looking=Looking), patch.dict(naive.ROUTERS, looking=NaiveLooking):
        yield
    assert Looking.seen == NaiveLooking.seen


@pytest.mark.parametrize("clients", [Clients(open_loop=True), Clients()], ids=["caught up", "alive"])
def test_blocks_that_passes_under_way_take_are_gone(clients: Clients) -> None:
    """Of the four that the first request leaves behind the third takes one a second from 15 s on; the fourth brings them to the other replica."""
    trace = Trace(
        request_id=("shared", "elsewhere", "decodes", "looks", "looks again"),
        arrival_s=np.array([0.0, 9.0, 10.0, 16.5, 18.5]),
        prompt_tokens=np.array([4, 1, 1, 5, 5]),
        output_tokens=np.array([1, 1, 9, 1, 1]),
        segments=[((0, 4),), ((1, 1),), ((2, 1),), ((0, 4), (3, 1)), ((0, 4), (4, 1))],
        session_id=tuple("abcde"),
    )
    config = scheduler_config(num_gpu_blocks=10, block_size=1, async_scheduling=False)
    step_time = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)
    with looking():
        simulate(trace, FleetPlan.alike(config, step_time, 2, "looking:listens=true"), clients=clients)
        simulate_cluster(trace, config, step_time, num_replicas=2, router="looking", clients=clients)
    assert [held for *_, held in Looking.seen][3:] == [[2, 0], [0, 4]]


@pytest.mark.parametrize("clients", [Clients(open_loop=True), Clients()], ids=["caught up", "alive"])
def test_blocks_that_a_pass_under_way_fills_are_there(clients: Clients) -> None:
    """Of a prompt of eight tokens each pass of a second computes two: six of them from 2 s on."""
    trace = Trace(
        request_id=("shared", "looks"),
        arrival_s=np.array([0.0, 2.5]),
        prompt_tokens=np.array([8, 9]),
        output_tokens=np.array([1, 1]),
        segments=[((0, 8),), ((0, 8), (1, 1))],
        session_id=tuple("ab"),
    )
    config = scheduler_config(num_gpu_blocks=20, block_size=1, max_num_batched_tokens=2, async_scheduling=False)
    step_time = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)
    with looking():
        simulate(trace, FleetPlan.alike(config, step_time, 2, "looking:listens=true"), clients=clients)
        simulate_cluster(trace, config, step_time, num_replicas=2, router="looking", clients=clients)
    assert Looking.seen[1][2] == [6, 0]


def test_of_answers_at_one_instant_that_of_the_first_replica_is_acted_on_first() -> None:
    """Two users without think time, the first at replica 1: both answers come after two steps of a second, and the user at replica 0 goes on first."""
    trace = Trace(
        request_id=tuple("abcdef"),
        arrival_s=np.zeros(6),
        prompt_tokens=np.ones(6, dtype=int),
        output_tokens=np.full(6, 2),
        segments=[((row, 1),) for row in range(6)],
        session_id=tuple("aabbcc"),
    )
    config = scheduler_config(num_gpu_blocks=20, block_size=1, async_scheduling=False)
    step_time = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)
    clients = Clients(Users(2))
    with looking():
        simulate(trace, FleetPlan.alike(config, step_time, 2, "looking:first=1"), clients=clients)
        simulate_cluster(trace, config, step_time, num_replicas=2, router="looking:first=1", clients=clients)
    assert [(at_s, row) for at_s, row, _ in Looking.seen] == [(0, 0), (0, 2), (2, 3), (2, 1), (4, 4), (6, 5)]


some_traces = st.one_of(conversations(), traces())
routers = st.builds(
    "looking:listens={},first={},stride={}".format,
    st.sampled_from(("true", "false")),
    st.integers(0, 2),
    st.integers(0, 2),
)


@examples(150)
@given(
    data=st.data(),
    trace=some_traces,
    step_time=step_times,
    num_replicas=st.integers(2, 3),
    router=routers,
    panel_bits=panel_bits,
)
def test_replicas(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    panel_bits: tuple[int, ...],
) -> None:
    """That catch up when they are asked, when a request comes, or live on the clock, as clients wait."""
    config = data.draw(configs(trace))
    trace, clients = (trace, Clients(open_loop=True)) if data.draw(st.booleans()) else data.draw(closed_loops(trace))
    plan = FleetPlan.alike(config, Telling(step_time), num_replicas, router)
    with looking(), patch.object(leaps, "PANEL_BITS", panel_bits):
        simulate(trace, plan, clients=clients)
        simulate_cluster(trace, config, Telling(step_time), num_replicas=num_replicas, router=router, clients=clients)


@examples(60)
@given(
    data=st.data(),
    trace=some_traces,
    step_time=step_times,
    num_servers=st.integers(2, 3),
    layout=layouts,
    rules=st.sampled_from([LockStepRules(), None]),
    router=routers,
)
def test_engines_of_servers(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    num_servers: int,
    layout: tuple[int, int],
    rules: LockStepRules | None,
    router: str,
) -> None:
    """Ranks that step together, or engines that know nothing of each other."""
    config = data.draw(configs(trace, versions=SINCE_0_12))
    trace, clients = (trace, Clients(open_loop=True)) if data.draw(st.booleans()) else data.draw(closed_loops(trace))
    server = ServerPlan(layout[0], rules, num_addresses=layout[1])
    with looking():
        assert_answers_are_those_of_naive_ones(trace, config, step_time, num_servers, server, router, clients)
