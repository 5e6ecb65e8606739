"""One simulation run: a trace's requests, their clients and the replicas that serve them, on SimPy's clock."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import simpy

from sim.cluster.arrivals import arrivals
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.gateway import Gateway
from sim.cluster.records import ClusterRecords
from sim.cluster.replica import LazyReplica, LiveReplica
from sim.cluster.routers.router import Fleet
from sim.cluster.routers.simple import RoundRobin
from sim.cluster.routers.table import router_options
from sim.engine.config import SchedulerConfig
from sim.engine.core import EngineCore
from sim.engine.recorder import Recorder
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.step_log import LogRow, StepLogger
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace

Progress = Callable[[int, int], None]


def simulate(  # noqa: PLR0913 - all that a run is made of
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_replicas: int = 1,
    router: str | Mapping[str, Any] = "least_loaded",
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
    on_progress: Progress | None = None,
    step_log: Callable[[LogRow], None] | None = None,
) -> ClusterRecords:
    """Replay a trace through equal replicas behind a router; times count from the trace's own zero.

    If `clients` wait for answers, records have the times at which requests were sent. `on_progress` is called with
    (requests done, all) as they arrive; `step_log` gets one dict a step, of one replica alone. Requests that can never
    run are rejected with their reason and delay no others. `seed` is that of the router's draws. Raises ConfigError for an
    unknown router.
    """
    assert step_log is None or num_replicas == 1, "steps of several replicas are not logged"
    clients.check(trace)
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    source = RequestSource(trace, config)
    they_wait = clients.wait_for_answers(trace)
    options, fleet = router_options(router), Fleet(num_replicas, source, config, seed)
    table = RequestTable(source, sent_by_clients=they_wait)
    recorders = [Recorder(table, number) for number in range(num_replicas)]
    start_s = min(0.0, float(trace.arrival_s[0]))
    log = StepLogger(step_log) if step_log else None
    cores = [
        EngineCore(config, step_time, recorder, start_s=start_s, num_keys=source.num_keys, log=log)
        for recorder in recorders
    ]
    env = simpy.Environment(initial_time=start_s)
    gateway = Gateway(env, options.router(fleet) if num_replicas > 1 else RoundRobin())
    requests = _telling(source, on_progress) if on_progress else source
    if they_wait:
        gateway.replicas = _live(env, cores, gateway)
        clients.start(env, trace, requests, gateway.ask)
        env.run()
    else:
        serve_open(env, cores, gateway, requests)
    parts = [recorder.records(core.state) for recorder, core in zip(recorders, cores, strict=True)]
    if on_progress:
        on_progress(len(trace), len(trace))
    return ClusterRecords.of(parts, table)


def serve_open(env: simpy.Environment, cores: list[EngineCore], gateway: Gateway, requests: Iterable[Request]) -> None:
    """Submit requests at the trace's times; only a router that listens waits for their answers."""
    lazy = [] if gateway.router.listens else [LazyReplica(env, core) for core in cores]
    gateway.replicas = lazy or _live(env, cores, gateway)
    env.process(arrivals(env, requests, gateway.submit))
    env.run()
    for replica in lazy:
        replica.finish()


def _live(env: simpy.Environment, cores: list[EngineCore], gateway: Gateway) -> list[LiveReplica]:
    interval_s = gateway.router.scrape_interval_s
    return [LiveReplica(env, core, partial(gateway.answered, number), interval_s) for number, core in enumerate(cores)]


def _telling(requests: RequestSource, on_progress: Progress) -> Iterator[Request]:
    """The requests; how many rows of the trace lie before each is told as the next is asked for."""
    for request in requests:
        yield request
        on_progress(request.index, len(requests))
