"""Tries a candidate: plans its memory, and if it can serve the trace, replays the trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.deployment import DEFAULTS, Deployment, deploy
from sim.errors import SimError
from sim.metrics.bottlenecks import Limits, limits
from sim.metrics.cost import usd_per_million
from sim.metrics.slo import slo_figures
from sim.metrics.summary import summary_of
from sim.search.objectives import Target, Unservable, unservable
from sim.search.slices import WHOLE, Slice
from sim.search.space import ROUTER, Params, canonical, engine_config, num_gpus, num_replicas
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.steptime.perturbed import AS_MODELLED, Perturbation, PerturbedStepTime
from sim.workload.load import Load
from sim.workload.rates import scale_rate
from sim.workload.trace import Trace


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
    """The result of a task. `reason` says why the candidate cannot serve the trace; if it is None, `metrics` has the figures."""

    reason: str | None
    metrics: dict[str, Any]
    limits: Limits | None = None

    @property
    def is_feasible(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class Scenario:
    """Everything that all candidates have in common. Picklable; `try_out` gives equal outcomes for equal tasks in any process.

    `base` holds the engine arguments that a candidate does not name.
    """

    model: ModelSpec
    gpu: HardwareProfile
    load: Load
    target: Target
    base: EngineConfig = DEFAULTS
    vllm_version: str | None = None
    router: str = "least_loaded"
    clients: Clients = AT_THEIR_TIMES
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES

    @property
    def trace(self) -> Trace:
        return self.load.trace

    def to_json(self) -> dict[str, Any]:
        """The load and the fixed engine arguments, under the keys of the answers."""
        load = self.load.to_json() | {"num_prompts": len(self.trace)} | self.clients.to_json()
        return {"engine": self.base.to_json(), **load}

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
        return engine_config(self.base, params)

    def router_of(self, params: Params) -> str:
        """The candidate's, or that of all."""
        return str(params.get(ROUTER) or self.router)

    def deploy(self, params: Params) -> Deployment:
        """The candidate as vLLM would start it. Raises SimError for what vLLM refuses."""
        engine, version = self.engine(params), self.vllm_version
        return deploy(self.model, self.gpu, engine, vllm_version=version, step_times=self.step_times)

    def try_out(self, task: Task) -> Outcome:
        """The outcome of a task: plan memory, replay, measure."""
        try:
            deployed = self.deploy(task.params)
        except SimError as error:
            return Outcome(str(error), {})
        if reason := self.why_not(deployed):
            return Outcome(reason, {})
        trace = scale_rate(task.part.cut(self.trace), task.rate_scale)
        try:
            records = self.replay(trace, task.params, deployed, task.perturbation)
        except SimError as error:
            return Outcome(str(error), {})
        found = self._limits(deployed, records) if task.explains else None
        return Outcome(None, self.metrics(task.params, deployed, records), found)

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

    def replay(
        self, trace: Trace, params: Params, deployed: Deployment, perturbation: Perturbation = AS_MODELLED
    ) -> ClusterRecords:
        """Replay a trace, which need not be the scenario's, through the candidate's replicas."""
        step_time = deployed.step_time
        if perturbation != AS_MODELLED:
            step_time = PerturbedStepTime(step_time, perturbation)
        plan = FleetPlan.alike(deployed.config, step_time, num_replicas(params), self.router_of(params))
        return simulate(trace, plan, clients=self.clients)

    def _limits(self, deployed: Deployment, records: ClusterRecords) -> Limits:
        span_s = records.span_s * len(records.replicas)
        return limits(records.merged, deployed.config, self.gpu, deployed.roofline_on, span_s=span_s)

    def metrics(self, params: Params, deployed: Deployment, records: ClusterRecords) -> dict[str, Any]:
        """The figures of a replay: the keys of `simulate`, GPUs, cost, each limited percentile, and goodput if it is defined."""
        metrics = summary_of(deployed, records.merged)
        metrics["gpu_busy_fraction"] = records.busy_fraction
        metrics |= {"replicas": num_replicas(params), "num_gpus": num_gpus(params, self.base)}
        slos = slo_figures(self.target.slos, records.merged, metrics["duration"])
        return metrics | slos | self._cost(metrics)

    def _cost(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What a million output tokens cost at the GPU's price, idle time included; None where it has no price."""
        price, tokens_per_s = self.gpu.price_usd_per_hour, metrics["output_throughput"]
        return {"usd_per_million_output_tokens": usd_per_million(price, metrics["num_gpus"], tokens_per_s)}
