"""A naive fleet that changes and whose spots hold servers of several engines, so many of which are behind an address.

A server begins, drains and is lost as one; an address knows nothing of what was there before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.lives import Life
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records, RequestRecords
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.clients import Senders
from tests.reference.cluster import Gateway, send
from tests.reference.front_door import answers, let_in, make_requests
from tests.reference.lockstep import Ranks
from tests.reference.managed import Job, ManagedFleet, Pool, Spot, ended_fleet, until_interrupted
from tests.reference.modes import PLAIN, Modes
from tests.reference.request import Request
from tests.reference.servers import Balancer, balancer_of, engines_of


class Servers(NamedTuple):
    """What every server of the fleet is like."""

    num_engines: int
    per_address: int
    balancer: str
    rules: dict[str, Any] | None
    modes: Modes = PLAIN


@dataclass(eq=False)
class Entry:
    """An address of a spot, before some engines of whatever server is there."""

    number: int
    spot: Spot
    first: int
    pool: int
    gateway: Gateway | None = None
    engines: Sequence[Any] = ()


@dataclass
class Stay:
    """What one server was made of."""

    engines: Sequence[Any]
    ranks: Any
    processes: list[simpy.Process] = field(default_factory=list)


class ServerSpots(ManagedFleet):
    """`kinds` are those of the servers of each pool, and `stays` those of each spot, the last of which is there."""

    kind = "server"
    trace: Trace

    @cached_property
    def kinds(self) -> Sequence[Servers]:
        raise NotImplementedError

    @cached_property
    def all_entries(self) -> dict[Spot, list[Entry]]:
        return {}

    @cached_property
    def stays(self) -> dict[Spot, list[Stay]]:
        return {}

    @cached_property
    def gateways(self) -> list[Gateway]:
        return []

    @cached_property
    def at_end(self) -> dict[Job, int]:
        return {}

    def entries(self, spot: Spot) -> Sequence[Entry]:
        if spot not in self.all_entries:
            first = sum(self.num_addresses(before.pool) for before in self.spots[: spot.number])
            per_address = self.kinds[spot.pool].per_address
            self.all_entries[spot] = [
                Entry(first + place, spot, place * per_address, spot.pool)
                for place in range(self.num_addresses(spot.pool))
            ]
        return self.all_entries[spot]

    def num_addresses(self, pool: int) -> int:
        """Of each server there."""
        return self.kinds[pool].num_engines // self.kinds[pool].per_address

    def spot_of(self, entry: Entry) -> Spot:
        return entry.spot

    def engine_numbers(self, spot: Spot) -> range:
        first = sum(self.kinds[before.pool].num_engines for before in self.spots[: spot.number])
        return range(first, first + self.kinds[spot.pool].num_engines)

    def engines_at(self, entry: Entry) -> Sequence[Any]:
        return entry.engines

    # -- a server ----------------------------------------------------------------------------------------------------

    def config_of(self, pool: int) -> SchedulerConfig:  # noqa: ARG002 - one for all
        return self.config

    def made(self, spot: Spot, start: Callable[[Any], None]) -> tuple[Sequence[Any], Any]:
        """The engines of a server, and what makes them step together."""
        raise NotImplementedError

    def fill(self, spot: Spot) -> None:
        servers, config = self.kinds[spot.pool], self.config_of(spot.pool)
        processes: list[simpy.Process] = []

        def start(runs: Any) -> None:
            processes.append(self.env.process(until_interrupted(runs)))

        assert "times" not in (servers.rules or {}), "those with stages stay"
        engines, ranks = self.made(spot, start)
        self.stays.setdefault(spot, []).append(Stay(engines, ranks, processes))
        spot.replica = engines[0]
        limits = PLAIN.with_limits_of(config.engine)
        for entry in self.entries(spot):
            balancer = balancer_of(servers.balancer, self.trace, config, servers.per_address)
            entry.gateway = Gateway(self.env, balancer, self.num_left, limits if limits.limits_queue else None)
            entry.gateway.on_refused = lambda request: self.refused(spot, request)
            entry.engines = engines[entry.first : entry.first + servers.per_address]
            entry.gateway.replicas = list(entry.engines)
            self.gateways.append(entry.gateway)
            if balancer.scrape_interval_s and servers.per_address > 1:
                self.env.process(entry.gateway.scrape(balancer.scrape_interval_s))

    def stop(self, spot: Spot) -> None:
        for process in self.stays[spot][-1].processes:
            process.interrupt()
        for entry in self.entries(spot):
            assert entry.gateway
            entry.gateway.lose_undecided()

    def load(self, entry: Any) -> tuple[int, int]:
        """Of an entry, or of all those of a spot."""
        spot = entry.spot if isinstance(entry, Entry) else entry
        if not spot.replica or spot.state != "ready":
            return 0, 0
        of = [entry] if isinstance(entry, Entry) else self.entries(spot)
        loads = [engine.load for one in of for engine in one.engines]
        undecided = sum(one.gateway.num_undecided for one in of if one.gateway)
        return undecided + sum(waiting for waiting, _ in loads), sum(running for _, running in loads)

    def metrics(self, spot: Spot) -> tuple[int, int, float]:
        """A query that adds up a server's series, or takes the mean of shares."""
        waiting, running, usages = zip(*(engine.metrics for engine in self.stays[spot][-1].engines), strict=True)
        return sum(waiting), sum(running), sum(usages) / len(usages)

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit_at(self, entry: Entry, request: Request) -> None:
        assert entry.gateway
        entry.gateway.submit(request)

    def abort_at(self, entry: Entry, request: Request, reason: str) -> None:
        gateway = entry.gateway
        assert gateway
        still_open = [answer for answer in answers([request]) if answer.finish_s is None]
        if gateway.forget(*still_open):
            for answer in still_open:
                answer.failed = reason
            return
        self.forget_at(entry, *still_open)
        for answer in still_open:
            gateway.replicas[gateway.chosen[answer.index]].abort(answer, reason)

    def forget_at(self, entry: Entry, *given_up: Request) -> None:
        assert entry.gateway
        assert isinstance(entry.gateway.router, Balancer)
        entry.gateway.router.given_up += given_up

    def leave(self, job: Job) -> None:
        """That of its first answer that has not come, or of the first one."""
        super().leave(job)
        entry = job.sent_to
        of = answers([job.attempt])
        still_open = [answer for answer in of if answer.finish_s is None]
        job.where = self.engine(entry, (still_open or of)[0])
        self.at_end[job] = self.engine(entry, job.attempt)

    def engine(self, entry: Entry, answer: Request) -> int:
        """Its number in the fleet; of the first one behind the address if it came to none."""
        assert entry.gateway
        within = next((where for sent, where in entry.gateway.router.sent if sent is answer), 0)
        return self.engine_numbers(entry.spot).start + entry.first + within

    def where(self, job: Job) -> int:
        return job.where if job.attempt.finish_s is None else self.at_end[job]

    def end(self, job: Job, outcome: str) -> None:
        super().end(job, outcome)
        for gateway in self.gateways:
            gateway.one_answered()


class ManagedServers(ServerSpots):
    """One pool of servers that serve requests whole."""

    def __init__(
        self,
        env: simpy.Environment,
        trace: Trace,
        config: SchedulerConfig,
        pools: Sequence[Pool],
        router: str,
        requests: list[Request],
        dynamics: Dynamics,
        servers: Servers,
        *,
        seed: int,
    ) -> None:
        self.trace, self.kinds = trace, [servers]
        super().__init__(env, config, pools, router, requests, dynamics, seed=seed)

    def made(self, spot: Spot, start: Callable[[Any], None]) -> tuple[Sequence[Any], Any]:
        (servers,) = self.kinds

        def finished(answer: Request) -> None:
            self.finished(spot, answer)

        return engines_of(
            self.env,
            self.config,
            spot.step_time,
            servers.num_engines,
            finished,
            servers.rules is not None,
            servers.rules or {},
            self.engine_numbers(spot).start,
            start=start,
            modes=servers.modes,
        )


class ServedByServers(NamedTuple):
    """As of a fleet of replicas, by engine; and of each spot whose engines step together what they were in turn."""

    requests: RequestRecords
    replica: list[int]
    lives: tuple[Life, ...]
    engines: list[list[Records]]
    ranks: list[list[Ranks]]


def simulate_changing_servers(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_servers: int,
    start_up_s: float,
    servers: Servers,
    router: str,
    dynamics: Dynamics,
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
) -> ServedByServers:
    """Every step of every engine, and every decision of the gateway and of the balancers."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config)
    pools = [Pool(step_time, num_servers, start_up_s)]
    fleet = ManagedServers(env, trace, config, pools, router, requests, dynamics, servers, seed=seed)
    senders = Senders(env, fleet.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    fleet.on_end = senders.tokens_back
    send(env, senders, trace, requests, clients)
    env.run()
    ended, where, lives = ended_fleet(fleet, requests, len(trace))
    stays = [fleet.stays.get(spot, []) for spot in fleet.spots]
    engines = [
        [stay.engines[number].recorder.records(answers(requests), stay.engines[number].scheduler) for stay in of_spot]
        for of_spot in stays
        for number in range(servers.num_engines)
    ]
    ranks = [[stay.ranks for stay in of_spot if stay.ranks] for of_spot in stays]
    return ServedByServers(ended, where, lives, engines, ranks)
