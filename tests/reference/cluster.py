"""Many naive replicas behind a router, and clients that wait for their answers."""

from collections.abc import Generator, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import simpy

from sim.cluster.routers.options import named
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import ANSWERED, BEFORE_ALL, Due, arrivals
from tests.reference.front_door import let_in, make_requests
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router


class Served(NamedTuple):
    """What each replica recorded, and which of them served each row, -1 where none did."""

    replicas: list[Records]
    replica: list[int]


class Gateway:
    """Routes each request, and wakes its client when it has ended."""

    def __init__(self, env: simpy.Environment, router: Router, num_unanswered: int) -> None:
        self._env = env
        self._router = router
        self._num_unanswered = num_unanswered
        self._answers: dict[Request, simpy.Event] = {}
        self.replicas: list[Replica] = []
        self.chosen: dict[int, int] = {}

    def submit(self, request: Request) -> None:
        number = self._router.choose(request, self.replicas) if len(self.replicas) > 1 else 0
        self.chosen[request.index] = number
        self._router.sent.append((request, number))
        self._answers[request] = self._env.event()
        self.replicas[number].submit(request)

    def client(self, requests: Iterator[Request], delay_s: float) -> Generator[simpy.Event, Any, None]:
        """Ask, wait for the answer, take a breath, and ask again."""
        for request in requests:
            request.arrival_s = self._env.now
            self.submit(request)
            yield self._answers[request]
            yield Due(self._env, 0, ANSWERED)
            if delay_s:
                yield Due(self._env, delay_s)

    def scrape(self, interval_s: float) -> Generator[simpy.Event, Any, None]:
        """Ask every replica for its metrics at each multiple of the interval, before anything else happens then."""
        while self._num_unanswered:
            yield Due(self._env, interval_s - self._env.now % interval_s, BEFORE_ALL)
            self._router.metrics = [replica.metrics for replica in self.replicas]
            self._router.scraped()

    def finished(self, request: Request) -> None:
        self._num_unanswered -= 1
        self._answers[request].succeed()


def simulate_cluster(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_replicas: int,
    router: str | Mapping[str, Any],
    seed: int = 0,
    concurrency: int | None = None,
    delay_s: float = 0.0,
) -> Served:
    """Requests come when the trace says or, with a `concurrency`, from so many clients."""
    env = simpy.Environment(initial_time=0.0 if concurrency else min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config)
    name, options = named(router)
    chooser = ROUTERS[name](trace, config, num_replicas, Random(seed), options)  # noqa: S311
    gateway = Gateway(env, chooser, len(let_in(requests)))
    recorders = [Recorder() for _ in range(num_replicas)]
    gateway.replicas = [
        Replica(env, config, step_time, recorder, on_finished=gateway.finished) for recorder in recorders
    ]
    for replica in gateway.replicas:
        env.process(replica.run())
    if chooser.scrape_interval_s and num_replicas > 1:
        env.process(gateway.scrape(chooser.scrape_interval_s))
    if concurrency is None:
        env.process(arrivals(env, let_in(requests), gateway))
    else:
        unsent = iter(let_in(requests))
        for _ in range(concurrency):
            env.process(gateway.client(unsent, delay_s))
    env.run()
    parts = [
        recorder.records(requests, replica.scheduler)
        for recorder, replica in zip(recorders, gateway.replicas, strict=True)
    ]
    return Served(parts, [gateway.chosen.get(request.index, -1) for request in requests])
