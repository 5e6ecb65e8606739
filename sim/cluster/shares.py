"""A run in shares: where replicas know nothing of each other, some are simulated here and the others elsewhere.

Each share routes all requests, which costs little, and serves those of its own replicas in a SimPy environment of its own. So every
replica does what it would have done beside the others, and the shares put together are the run, to the byte.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

import simpy

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.routers.table import ROUTERS, router_options
from sim.cluster.simulation import check_plan, gateway_of, members_of, serve_open
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.request_table import RequestTable, TablePart
from sim.errors import listed
from sim.workload.trace import Trace


class Share(NamedTuple):
    """The records of some replicas, by number, and the rows of the requests that they served."""

    records: dict[int, EngineRecords]
    requests: TablePart


def why_not_in_shares(trace: Trace, plan: FleetPlan, clients: Clients) -> str | None:
    """What ties the replicas to each other, and what to do; None if nothing does."""
    if plan.num_replicas == 1:
        return "there is one replica"
    if plan.dynamics or plan.disaggregation or plan.sharing or plan.has_servers:
        return "replicas that come and go, hand KV over or share it, or are engines of one server, depend on each other"
    if clients.wait_for_answers(trace):
        return "clients that wait for answers (sessions, stages, users, max_concurrency) tie what one replica is sent to what others do"
    router = router_options(plan.router)
    if not router.is_blind:
        name = next(name for name, options in ROUTERS.items() if type(router) is options)
        blind = listed([f"`{name}`" for name, options in ROUTERS.items() if options().is_blind], "or")
        return f"router {name} looks at them before it chooses one; choose {blind}"
    return None


def simulate_share(trace: Trace, plan: FleetPlan, numbers: Collection[int], *, seed: int) -> Share:
    """Replay a trace through a fleet in which nothing ties the replicas to each other, and serve what some of them are sent."""
    check_plan(trace, plan)
    source = plan.source(trace)
    table = RequestTable(source)
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    members = members_of(plan, source, table, env.now, some=numbers)
    others = [Elsewhere(number, pool) for number, pool in enumerate(plan.pool_of) if number not in numbers]
    serve_open(env, members, gateway_of(env, plan, source, table, seed), source, others)
    return Share({member.number: member.records() for member in members}, table.part())


def put_together(trace: Trace, plan: FleetPlan, shares: Sequence[Share]) -> ClusterRecords:
    """The run of which these are all the shares."""
    table = RequestTable(plan.source(trace))
    records: dict[int, EngineRecords] = {}
    for share in shares:
        table.add(share.requests)
        records |= share.records
    return ClusterRecords.of([records[number] for number in range(plan.num_replicas)], table, plan.pool_of)


class Elsewhere:
    """A replica of another share: it is sent requests, and what it does with them is simulated there. Nobody asks it anything."""

    def __init__(self, number: int, pool: int) -> None:
        self.number = number
        self.pool = pool

    def submit(self, *answers: Request) -> None:
        """Served elsewhere."""

    @property
    def load(self) -> NoReturn:
        raise NotImplementedError

    def metrics(self, at_s: float) -> NoReturn:
        raise NotImplementedError

    def num_cached_blocks(self, request: Request) -> NoReturn:
        raise NotImplementedError

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> NoReturn:
        raise NotImplementedError
