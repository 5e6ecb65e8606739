"""Many naive replicas behind a router, and clients that wait for their answers."""

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import simpy

from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import ANSWERED, Due, arrivals
from tests.reference.front_door import let_in, make_requests
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica
from tests.reference.request import Request

Choose = Callable[[Sequence[Replica]], int]


class Served(NamedTuple):
    """What each replica recorded, and which of them served each row, -1 where none did."""

    replicas: list[Records]
    replica: list[int]


def round_robin() -> Choose:
    turns = count()
    return lambda replicas: next(turns) % len(replicas)


def least_loaded() -> Choose:
    """4 x waiting + running; the first of equals, counted from the one after the last chosen."""
    last = -1

    def choose(replicas: Sequence[Replica]) -> int:
        nonlocal last
        scores = [4 * replica.load[0] + replica.load[1] for replica in replicas]
        turns = [(last + 1 + turn) % len(replicas) for turn in range(len(replicas))]
        last = min(turns, key=lambda number: scores[number])
        return last

    return choose


ROUTERS: dict[str, Callable[[], Choose]] = {"round_robin": round_robin, "least_loaded": least_loaded}


class Gateway:
    """Routes each request, and wakes its client when it has ended."""

    def __init__(self, env: simpy.Environment, choose: Choose) -> None:
        self._env = env
        self._choose = choose
        self._answers: dict[Request, simpy.Event] = {}
        self.replicas: list[Replica] = []
        self.chosen: dict[int, int] = {}

    def submit(self, request: Request) -> None:
        number = self.chosen[request.index] = self._choose(self.replicas)
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

    def finished(self, request: Request) -> None:
        self._answers[request].succeed()


def simulate_cluster(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_replicas: int,
    router: str,
    concurrency: int | None = None,
    delay_s: float = 0.0,
) -> Served:
    """Requests come when the trace says or, with a `concurrency`, from so many clients."""
    env = simpy.Environment(initial_time=0.0 if concurrency else min(0.0, float(trace.arrival_s[0])))
    gateway = Gateway(env, ROUTERS[router]())
    recorders = [Recorder() for _ in range(num_replicas)]
    gateway.replicas = [
        Replica(env, config, step_time, recorder, on_finished=gateway.finished) for recorder in recorders
    ]
    for replica in gateway.replicas:
        env.process(replica.run())
    requests = make_requests(trace, config)
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
