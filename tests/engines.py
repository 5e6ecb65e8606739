"""The engines that tests run side by side: each replays a trace and returns what it recorded."""

from collections.abc import Callable
from typing import Any, Protocol

import simpy

from sim.cluster import simulation
from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.gateway import Gateway
from sim.cluster.records import ClusterRecords
from sim.cluster.routers.simple import TheOnlyOne
from sim.cluster.simulation import Member, serve_open
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.step_log import WalkLogger
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference import replica as reference

StepLog = Callable[[dict[str, Any]], None]


class Engine(Protocol):
    def __call__(
        self, trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, *, step_log: StepLog | None = None
    ) -> Records: ...


def simulate(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, *, step_log: StepLog | None = None
) -> Records:
    """One replica, requests at the times that the trace has, whatever they would wait for."""
    at_their_times = Clients(open_loop=True)
    return simulation.simulate(
        trace, FleetPlan.alike(config, step_time), clients=at_their_times, step_log=step_log
    ).merged


def walk(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, *, step_log: StepLog | None = None
) -> Records:
    """The same, by the engine that walks."""
    source = RequestSource(trace, config)
    table = RequestTable(source)
    start_s = min(0.0, float(trace.arrival_s[0]))
    log = WalkLogger(step_log) if step_log else None
    core = WalkingCore(config, step_time, WalkRecorder(table), start_s=start_s, num_keys=source.num_keys(), log=log)
    env = simpy.Environment(initial_time=start_s)
    serve_open(env, [Member(core)], Gateway(env, TheOnlyOne()), source)
    return ClusterRecords.of([core.records()], table, (0,)).merged


ENGINES: dict[str, Engine] = {"fast": simulate, "reference": reference.simulate, "walking": walk}
