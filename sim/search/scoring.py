"""A deployment and a trace as a function of engine arguments, for anybody's optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.cluster.routers.table import router_options
from sim.deployment import DEFAULTS, as_gpu, as_model, require_one_stage
from sim.errors import ConfigError
from sim.metrics.slo import parse_slos
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.objectives import parse_target
from sim.search.space import check_knob
from sim.search.unservable import unservable
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.sampling import Sampling
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition, step_time_options
from sim.steptime.protocol import StepTimeModel
from sim.workload.readers import TraceLike, as_trace


def scenario(  # noqa: PLR0913 - flat keywords are the public interface
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    trace: TraceLike,
    *,
    objective: str = "throughput",
    slo: Sequence[str] = (),
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    router: str = "least_loaded",
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
) -> Scenario:
    """Everything looked up and checked; arguments as for `sim.optimize`. Raises SimError for bad input."""
    require_one_stage(engine)
    router_options(router)
    target = parse_target(objective, parse_slos(slo))
    profile = as_gpu(gpu)
    if profile.price_usd_per_hour is None and any(goal.name == "cost" for goal in target.goals):
        raise ConfigError(
            f"--objective cost needs the price of {profile.name}, and its profile has none; give one with --price (USD per GPU hour)."
        )
    found = Scenario(
        model=as_model(model, engine),
        gpu=profile,
        trace=as_trace(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit),
        target=target,
        base=engine,
        vllm_version=vllm_version,
        router=router,
        step_times=step_time_options(composition, sampling, expert_routing, step_time_model),
        request_rate=request_rate,
        rate_scale=rate_scale,
        limit=limit,
    )
    unservable(found.trace, found.model, target.limits)  # to refuse a trace of which nothing can be served
    return found


@dataclass(frozen=True)
class Objective:
    """Callable and picklable: engine arguments, and `replicas`, to a dict of figures."""

    scenario: Scenario

    def __call__(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """`feasible`, `reason`, `score` (None where infeasible), `losses` (one a goal, less is better), `slo_violation`
        and the keys of `simulate`. Raises ConfigError for an unknown argument or a value of the wrong kind.
        """
        for name, value in params.items():
            check_knob(name, (value,))
        return self._figures(self.scenario.try_out(Task(params)))

    def _figures(self, outcome: Outcome) -> dict[str, Any]:
        target, metrics = self.scenario.target, outcome.metrics
        losses = [goal.loss(metrics) for goal in target.goals]
        violation = target.violation(metrics) if outcome.is_feasible else None
        score = metrics.get(target.goals[0].key)
        head = {"feasible": outcome.is_feasible, "reason": outcome.reason, "score": score, "losses": losses}
        return {**head, "slo_violation": violation, **metrics}


def objective(
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    trace: TraceLike,
    **options: Any,
) -> Objective:
    """The function that `sim.optimize` optimises, for an optimizer of your own; options as for `scenario`."""
    return Objective(scenario(model, gpu, trace, **options))
