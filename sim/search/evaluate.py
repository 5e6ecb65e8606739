"""Tries a candidate: plans its memory, and if it can serve the trace, replays the trace."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.deployment import DEFAULTS, Deployment, ModelLike, deploy
from sim.errors import SimError
from sim.fleet import DEFAULT_ROUTER, DeployedFleet, deploy_fleet
from sim.metrics.bottlenecks import Limits, limits
from sim.metrics.cost import cost, usd_per_million
from sim.metrics.fleet import fleet_over_time, fleet_summary, gpus_held, held_s, pool_figures
from sim.metrics.kv_on_its_way import watched
from sim.metrics.slo import slo_figures
from sim.search.blueprint import ROUTER, Blueprint, Params, canonical
from sim.search.objectives import Target, Unservable, unservable
from sim.search.slices import WHOLE, Slice
from sim.sharing import OptionsLike
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import FleetFile, sharing_sections
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.steptime.perturbed import AS_MODELLED, Perturbation, PerturbedStepTime
from sim.workload.load import Load
from sim.workload.rates import scale_rate
from sim.workload.trace import Trace

KEPT = 16
"""Candidates that stay deployed: several parts of a trace, or rates, are tried of one after the other, or of a few in turn."""


class Task(NamedTuple):
    """A replay to do: a candidate on a part of the trace, at `rate_scale` times its rate, with perturbed step times.

    With `explains` the outcome says what limits the candidate as well.
    """

    params: Params
    part: Slice = WHOLE
    perturbation: Perturbation = AS_MODELLED
    rate_scale: float = 1.0
    explains: bool = False

    @property
    def key(self) -> str:
        """Equal for equal tasks, in any process."""
        return canonical([self.params, self.part.windows, self.perturbation, self.rate_scale, self.explains])


class Outcome(NamedTuple):
    """The result of a task. `reason` says why the candidate cannot serve the trace; if it is None, `metrics` has the figures.

    `limits` are those of a deployment; those of a fleet's pools stand with their figures.
    """

    reason: str | None
    metrics: dict[str, Any]
    limits: Limits | None = None

    @property
    def is_feasible(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class Scenario:
    """Everything that all candidates have in common. Picklable; `try_out` gives equal outcomes for equal tasks in any process.

    `base` holds the engine arguments that a candidate does not name; `fleet` has the pools where there are several kinds,
    and how they share KV; `kv_store` and `kv_pull` are for equal replicas.
    `source` is what the model was looked up by, for candidates that quantise it otherwise.
    """

    model: ModelSpec
    gpu: HardwareProfile
    load: Load
    target: Target
    base: EngineConfig = DEFAULTS
    vllm_version: str | None = None
    router: str | None = DEFAULT_ROUTER
    clients: Clients = AT_THEIR_TIMES
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES
    fleet: FleetFile | None = None
    kv_store: OptionsLike | None = None
    kv_pull: OptionsLike | None = None
    source: ModelLike | None = None

    @property
    def trace(self) -> Trace:
        return self.load.trace

    @cached_property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.base, self.router, self.fleet, self.kv_store, self.kv_pull)

    def to_json(self) -> dict[str, Any]:
        """The load and the fixed engine arguments, under the keys of the answers."""
        load = self.load.to_json() | {"num_prompts": len(self.trace)} | self.clients.to_json()
        return {"engine": self.base.to_json(), **sharing_sections(self.kv_store, self.kv_pull), **load}

    @cached_property
    def longest_request(self) -> int:
        """Tokens of the longest request whose prompt fits into the model's context, capped by that context."""
        trace, most = self.trace, self.model.max_model_len
        taken = trace.prompt_tokens < most
        return min(int((trace.prompt_tokens + trace.output_tokens)[taken].max(initial=1)), most)

    @cached_property
    def unservable(self) -> Unservable | None:
        """Requests that every candidate rejects. Raises TraceError if there are no others."""
        return unservable(self.trace, self.model, self.target.limits)

    def engine(self, params: Params) -> EngineConfig:
        """The candidate's arguments for all pools that do not have their own."""
        return self.blueprint.engine_for_all(params)

    def deploy(self, params: Params) -> Deployment:
        """A replica of the candidate as vLLM would start it, where there are no pools. Raises SimError for what vLLM refuses."""
        engine, version = self.engine(params), self.vllm_version
        return deploy(self._model_of(params), self.gpu, engine, vllm_version=version, step_times=self.step_times)

    def _model_of(self, params: Params) -> ModelLike:
        """The model as it was looked up once for all, or what to look it up by where some pool quantises it otherwise."""
        usual = self.base.quantization
        is_usual = all(engine.quantization == usual for engine in self.blueprint.engines(params))
        return self.model if is_usual or self.source is None else self.source

    def deploy_fleet(self, params: Params) -> DeployedFleet:
        """The candidate's replicas behind its router. Raises SimError for what vLLM refuses, and for a pool that does not start."""
        key = canonical(params)
        if (fleet := self._deployed.pop(key, None)) is None:
            fleet = self._deploy_fleet(params)
        self._deployed[key] = fleet  # the last of those that were asked for
        if len(self._deployed) > KEPT:
            del self._deployed[next(iter(self._deployed))]
        return fleet

    @cached_property
    def _deployed(self) -> dict[str, DeployedFleet]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Other processes deploy for themselves."""
        return {name: value for name, value in vars(self).items() if name != "_deployed"}

    def _deploy_fleet(self, params: Params) -> DeployedFleet:
        if self.fleet is None:
            engine, count = self.engine(params), self.blueprint.num_replicas(params)
            deployment = self.deploy(params)
            deployment.check_lock_step()
            alike = DeployedFleet.alike(deployment, engine, count, self.blueprint.router_of(params))
            return alike.sharing_kv(**self.blueprint.sharing_of(params))
        return deploy_fleet(
            self._model_of(params), self.gpu, self.engine(params), self.blueprint.fleet_file(params),
            router=None if ROUTER in params else self.router, vllm_version=self.vllm_version, step_times=self.step_times,
        )  # fmt: skip

    def try_out(self, task: Task) -> Outcome:
        """The outcome of a task: plan memory, replay, measure."""
        try:
            fleet = self.deploy_fleet(task.params)
        except SimError as error:
            return Outcome(str(error), {})
        if reason := self.cannot_serve(fleet):
            return Outcome(reason, {})
        trace = scale_rate(task.part.cut(self.trace), task.rate_scale)
        try:
            records = self.replay(trace, fleet, task.perturbation)
        except SimError as error:
            return Outcome(str(error), {})
        return self._explained(fleet, records) if task.explains else Outcome(None, self.metrics(fleet, records))

    def _explained(self, fleet: DeployedFleet, records: ClusterRecords) -> Outcome:
        """With what limits it, or each of the pools that were asked for."""
        metrics = self.metrics(fleet, records)
        by_pool = list(_limits(fleet, records))
        if fleet.asked is None:
            return Outcome(None, metrics, by_pool[0])
        pools = [
            figures | {"limits": found.to_json()} for figures, found in zip(metrics["pools"], by_pool, strict=True)
        ]
        return Outcome(None, metrics | {"pools": pools})

    def cannot_serve(self, fleet: DeployedFleet) -> str | None:
        """Why no pool that answers can serve every request of the trace; None if one can."""
        reasons = [self.why_not(pool.deployment) for pool in fleet.pools if pool.role != "prefill"]
        return reasons[0] if all(reasons) else None

    def why_not(self, deployed: Deployment) -> str | None:
        """Why the candidate cannot serve every request of the trace; None if it can."""
        if reason := deployed.why_not(what_if=False):
            return reason
        plan, longest = deployed.plan, self.longest_request
        if plan.max_model_len < longest:
            return f"max_model_len={plan.max_model_len:,} is too short for the longest request of the trace, {longest:,} tokens."
        if plan.longest_model_len < longest:
            return (
                f"the KV cache holds a request of {plan.longest_model_len:,} tokens, the trace has one of {longest:,}."
            )
        return None

    def replay(self, trace: Trace, fleet: DeployedFleet, perturbation: Perturbation = AS_MODELLED) -> ClusterRecords:
        """Replay a trace, which need not be the scenario's, through a fleet; its times are by the clock of the clients."""
        if perturbation == AS_MODELLED:
            plan = fleet.plan(trace=trace)
        else:
            plan = fleet.plan(lambda step_time: PerturbedStepTime(step_time, perturbation), trace=trace)
        return self.clients.seen(simulate(trace, plan, clients=self.clients), plan.front_end)

    def metrics(self, fleet: DeployedFleet, records: ClusterRecords) -> dict[str, Any]:
        """The figures of a replay: the keys of `simulate`, GPUs, cost, each limited percentile, and goodput if it is defined.

        Of a fleet that was asked for also those of its pools, and how many replicas there were where they come and go.
        """
        metrics = fleet_summary(fleet, records)
        metrics["gpu_busy_fraction"] = records.busy_fraction
        metrics |= {"replicas": fleet.num_servers, "num_gpus": fleet.num_gpus}
        metrics |= slo_figures(self.target.slos, records.merged, metrics["duration"])
        price = fleet.usd_per_gpu_hour
        if fleet.asked is None:
            per_million = usd_per_million(price, fleet.num_gpus, metrics["output_throughput"])
            return metrics | {"usd_per_million_output_tokens": per_million}
        paid_s = held_s(records, metrics["duration"])
        over_time = fleet_over_time(fleet, records, paid_s)
        bill = cost(metrics, held_s=paid_s, num_gpus=gpus_held(fleet, records, paid_s), usd_per_hour=price)
        return metrics | over_time | bill | {"pools": pool_figures(fleet, records)}


def _limits(fleet: DeployedFleet, run: ClusterRecords) -> Iterator[Limits]:
    """Of each pool."""
    for number, (pool, records) in enumerate(zip(fleet.pools, run.pools, strict=True)):
        made = pool.deployment
        steps = watched(run, number)
        yield limits(records, made.config, made.gpu, made.roofline_on, span_s=run.replica_s(number), steps=steps)
