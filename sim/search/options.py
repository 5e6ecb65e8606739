"""What a search is told of its deployment, the load and the limits: the options that `optimize` and `capacity` share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.cluster.clients import Clients
from sim.deployment import DEFAULTS
from sim.specs.engine import EngineConfig
from sim.specs.sampling import Sampling
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition, StepTimeOptions, step_time_options
from sim.steptime.protocol import StepTimeModel


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """As users give them; `sim.optimize` explains each."""

    objective: str = "throughput"
    slo: Sequence[str] = ()
    engine: EngineConfig = DEFAULTS
    vllm_version: str | None = None
    rate_scale: float = 1.0
    request_rate: float | None = None
    limit: int | None = None
    router: str = "least_loaded"
    max_concurrency: int | None = None
    open_loop: bool = False
    composition: Composition = "additive"
    sampling: Sampling = "default"
    expert_routing: ExpertRouting = "skewed"
    step_time_model: str | Path | StepTimeModel | None = None

    @property
    def clients(self) -> Clients:
        return Clients(max_concurrency=self.max_concurrency, open_loop=self.open_loop)

    @property
    def step_times(self) -> StepTimeOptions:
        return step_time_options(self.composition, self.sampling, self.expert_routing, self.step_time_model)
