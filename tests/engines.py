"""The engines that tests run side by side: each replays a trace and returns what it recorded."""

from collections.abc import Callable
from typing import Any, Protocol

from sim.cluster import simulation
from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
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


ENGINES: dict[str, Engine] = {"fast": simulate, "reference": reference.simulate}
