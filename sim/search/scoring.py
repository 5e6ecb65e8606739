"""The options of a search, the scenario made of them, and that scenario as a function for an optimizer of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim import sharing
from sim.cluster.clients import Clients
from sim.cluster.front_end import Clock
from sim.cluster.routers.table import router_options
from sim.deployment import DEFAULTS, GpuLike, ModelLike, as_gpu, as_model
from sim.errors import ConfigError
from sim.fleet import DEFAULT_ROUTER
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.objectives import parse_target, unservable
from sim.specs.acceptance import AcceptanceLike
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import FleetLike, read_fleet
from sim.specs.hardware import HardwareProfile
from sim.specs.sampling import Sampling
from sim.specs.slo import parse_slos
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition, StepTimeOptions, step_time_options
from sim.steptime.protocol import StepTimeModel
from sim.workload.load import as_load
from sim.workload.readers import TraceLike


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options that `optimize` and `capacity` share, as users give them; `sim.optimize` explains each."""

    objective: str = "throughput"
    slo: Sequence[str] = ()
    engine: EngineConfig = DEFAULTS
    vllm_version: str | None = None
    rate_scale: float = 1.0
    request_rate: float | None = None
    limit: int | None = None
    router: str | None = None
    fleet: FleetLike | None = None
    kv_store: sharing.OptionsLike | None = None
    kv_pull: sharing.OptionsLike | None = None
    max_concurrency: int | None = None
    open_loop: bool = False
    clock: Clock = "engine"
    composition: Composition = "additive"
    sampling: Sampling = "default"
    expert_routing: ExpertRouting = "skewed"
    step_time_model: str | Path | StepTimeModel | None = None
    acceptance: AcceptanceLike | None = None

    @property
    def clients(self) -> Clients:
        return Clients(max_concurrency=self.max_concurrency, open_loop=self.open_loop, clock=self.clock)

    @property
    def step_times(self) -> StepTimeOptions:
        return step_time_options(
            self.composition, self.sampling, self.expert_routing, self.step_time_model, self.acceptance
        )


def scenario(model: ModelLike, gpu: GpuLike, trace: TraceLike, options: SearchOptions) -> Scenario:
    """The scenario of these inputs, looked up and checked. Raises SimError for bad input."""
    if options.acceptance is not None and options.engine.speculative_config is None and options.fleet is None:
        raise ConfigError(
            "acceptance says how drafts fare, and nothing drafts; give a speculative_config, or leave it out."
        )
    sharing.check_options(options.kv_store, options.kv_pull)
    fleet = None if options.fleet is None else read_fleet(options.fleet).sharing_kv(options.kv_store, options.kv_pull)
    if options.router is not None:
        router_options(options.router)
    target, profile = parse_target(options.objective, parse_slos(options.slo)), as_gpu(gpu)
    if any(goal.name == "cost" for goal in target.goals):
        _check_prices([as_gpu(pool.gpu or profile) for pool in fleet.pools] if fleet else [profile])
    found = Scenario(
        as_model(model, options.engine),
        profile,
        as_load(trace, request_rate=options.request_rate, rate_scale=options.rate_scale, limit=options.limit),
        target,
        base=options.engine,
        vllm_version=options.vllm_version,
        router=options.router if fleet else options.router or DEFAULT_ROUTER,
        clients=options.clients,
        step_times=options.step_times,
        fleet=fleet,
        kv_store=None if fleet else options.kv_store,
        kv_pull=None if fleet else options.kv_pull,
        source=model,
    )
    found.clients.check(found.trace)
    if found.trace.slo_class is not None:
        limited = ", ".join(one.name for one in found.trace.slo_classes if one.slos)
        raise ConfigError(
            f"the workload's classes have limits of their own (`slo` of {limited}), and a search holds all requests to the same; take `slo` out and give --slo, or simulate."
        )
    unservable(found.trace, found.model, target.limits)  # to refuse a trace of which nothing can be served
    return found


def _check_prices(gpus: Sequence[HardwareProfile]) -> None:
    for gpu in gpus:
        if gpu.price_usd_per_hour is None:
            raise ConfigError(
                f"--objective cost needs the price of {gpu.name}, and its profile has none; give one with --price (USD per GPU hour)."
            )


@dataclass(frozen=True)
class Objective:
    """A function from engine arguments, and `replicas`, or from knobs of a fleet's pools, to a dict of figures. Picklable."""

    scenario: Scenario

    def __call__(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """`feasible`, `reason`, `score` (None where infeasible), `losses` (one a goal, less is better), `slo_violation`
        and the keys of `simulate`. Raises ConfigError for an unknown argument or a value of the wrong kind.
        """
        for name, value in params.items():
            self.scenario.blueprint.check_knob(name, (value,))
        return self._figures(self.scenario.try_out(Task(params)))

    def _figures(self, outcome: Outcome) -> dict[str, Any]:
        target, metrics = self.scenario.target, outcome.metrics
        losses = [goal.loss(metrics) for goal in target.goals]
        violation = target.violation(metrics) if outcome.is_feasible else None
        score = metrics.get(target.goals[0].key)
        head = {"feasible": outcome.is_feasible, "reason": outcome.reason, "score": score, "losses": losses}
        return {**head, "slo_violation": violation, **metrics}


def objective(model: ModelLike, gpu: GpuLike, trace: TraceLike, **options: Any) -> Objective:
    """The function that `sim.optimize` optimises, for an optimizer of your own; `options` are fields of SearchOptions."""
    return Objective(scenario(model, gpu, trace, SearchOptions(**options)))
