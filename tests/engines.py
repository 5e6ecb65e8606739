"""The engines that tests run side by side: each replays a trace and returns what it recorded."""

from collections.abc import Callable
from typing import Any, Protocol

from sim.serving.config import SchedulerConfig
from sim.serving.records import Records
from sim.serving.replica import simulate
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference import replica as reference


class Engine(Protocol):
    def __call__(
        self,
        trace: Trace,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        *,
        step_log: Callable[[dict[str, Any]], None] | None = None,
    ) -> Records: ...


ENGINES: dict[str, Engine] = {"fast": simulate, "reference": reference.simulate}
