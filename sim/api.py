"""The composition root: the one place that picks implementations and wires them together."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sim import __version__
from sim.cluster import simulation
from sim.engine.config import SchedulerConfig, scheduler_config
from sim.engine.kv_cache_manager import can_ever_fit
from sim.engine.records import Records
from sim.errors import ConfigError, DoesNotFitError
from sim.measure.confidence import confidence
from sim.measure.forecast import confidence_json, forecast
from sim.measure.likeness import regime, traits
from sim.measure.perturbed import PerturbedStepTime, all_off_by
from sim.memory.design import GraphMemoryModel
from sim.memory.loading import with_prediction_layers
from sim.memory.plan import MemoryPlan
from sim.memory.startup import start_up
from sim.metrics.columns import Columns, request_columns, step_columns
from sim.metrics.cost import cost
from sim.metrics.summary import summarize
from sim.metrics.what_limits import StepTimeOn, what_limits
from sim.report.console import result_table
from sim.report.run_title import run_title
from sim.report.tables import terminal_width
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.sampling import Sampling
from sim.steptime import model as steptime
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import StepTimeModel
from sim.steptime.roofline import Composition, Traffic
from sim.steptime.routing import Routing
from sim.units import MS
from sim.workload.load import load_json
from sim.workload.rates import scale_rate
from sim.workload.readers import TraceLike, as_trace
from sim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.measure.calibrate import Calibration
    from sim.measure.runs import Run
    from sim.measure.validate import Validation

DEFAULTS = EngineConfig()
PlotKind = Literal["timeline", "latency"]


class Deployment(NamedTuple):
    """A model on GPUs, its engine arguments resolved and its memory planned."""

    model: ModelSpec
    gpu: HardwareProfile
    engine: ResolvedEngine
    plan: MemoryPlan

    def __str__(self) -> str:
        return f"{self.model.name} on {self.engine.num_gpus} x {self.gpu.name}"


@dataclass(frozen=True)
class Result:
    """What a simulation found. `summary` has the keys of `vllm bench serve --save-result`; printing it gives its table."""

    summary: dict[str, Any]
    deployment: Deployment
    trace: Trace
    records: Records

    def __str__(self) -> str:
        return f"{run_title(self.summary, terminal_width())}\n{result_table(self.summary)}"

    def _repr_html_(self) -> str:
        from sim.report.html import simulation_html

        return simulation_html(self.summary)

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request, in trace order."""
        return _frame(request_columns(self.trace, self.records.requests))

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row an engine step, in order of launch."""
        return _frame(self._step_columns())

    def write(self, folder: str | Path) -> None:
        """Write summary.json, requests.csv, steps.csv, latency.png and timeline.png; whole or not at all.

        Raises ConfigError where the folder holds anything but an earlier result, or cannot be written.
        """
        from sim.report.folder import write_folder
        from sim.report.plots import TITLE_WIDTH

        requests = request_columns(self.trace, self.records.requests)
        title = run_title(self.summary, TITLE_WIDTH)
        write_folder(Path(folder), self.summary, requests, self._step_columns(), self.records, title=title)

    def plot(self, kind: PlotKind = "timeline") -> "Figure":
        """A matplotlib Figure, as `write` draws it: the engine over time, or the distributions of latencies."""
        from sim.report import plots

        title = run_title(self.summary, plots.TITLE_WIDTH)
        if kind == "latency":
            return plots.latency_figure(self.records, title=title)
        if kind == "timeline":
            return plots.timeline_figure(self.records, num_gpu_blocks=self.summary["num_gpu_blocks"], title=title)
        raise ConfigError(f"plot draws `timeline` or `latency`, got {kind!r}.")

    def _step_columns(self) -> Columns:
        plan, engine = self.deployment.plan, self.deployment.engine
        return step_columns(self.records.steps, num_gpu_blocks=plan.num_gpu_blocks, dispatch=GraphDispatch.of(engine))


def deploy(
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    *,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    graph_memory: GraphMemoryModel = "measured",
    prediction_layers: bool = False,
) -> Deployment:
    """What `vllm serve` would make of these arguments at start-up, whether or not it fits.

    Model and GPU are names, paths or specs; `vllm_version` None is the newest known. `graph_memory` "design" plans CUDA
    graphs by the original design's formula; `prediction_layers` loads those for multi-token prediction. Raises SimError
    for bad input.
    """
    profile = gpu if isinstance(gpu, HardwareProfile) else load_gpu(gpu)
    spec = model if isinstance(model, ModelSpec) else load_model(model, quantization=engine.quantization)
    spec = with_prediction_layers(spec) if prediction_layers else spec
    started = start_up(spec, profile, engine, vllm_version=vllm_version, graph_memory=graph_memory)
    return Deployment(spec, profile, started.engine, started.plan)


def plan_memory(
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    *,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    graph_memory: GraphMemoryModel = "measured",
    prediction_layers: bool = False,
) -> MemoryPlan:
    """What each GPU's memory goes to and how many KV blocks that leaves; `reason` says why it does not fit, if so.

    Arguments and errors as for `simulate` and `deploy`.
    """
    return deploy(
        model,
        gpu,
        engine=engine,
        vllm_version=vllm_version,
        graph_memory=graph_memory,
        prediction_layers=prediction_layers,
    ).plan


def simulate(  # noqa: PLR0913 - flat keywords are the public interface
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    trace: TraceLike,
    *,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    composition: Composition = "additive",
    sampling: Sampling = "default",
    routing: Routing = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    intervals: bool = True,
    progress: Callable[[int, int], None] | None = None,
    step_log: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Replay a trace on a deployment, as `vllm serve` with these arguments would serve it. The same input gives the same result.

    `limit` keeps the first requests of the trace and `rate_scale` 2 doubles their rate; `request_rate` R has those n arrive
    over n/R seconds in their own pattern, all at 0 where it is infinite. A replay draws nothing at random:
    `seed` is stamped on the summary, for those who made the trace with it. `step_time_model` replaces the
    roofline, whose mixed steps `composition` times; `sampling` "greedy" spares the sampler what the checkpoint's own top-p
    costs, and `routing` says how tokens spread over experts. `intervals` replays twice more, with step times as short and as long
    as they may be, and gives each figure the interval that makes. `progress` is called with (done, all) requests, `step_log` with
    each step. Raises DoesNotFitError where vLLM would not start, but takes `num_gpu_blocks_override` at its word: as many
    blocks as are asked for, and any number where the step times are given as well. Other SimErrors for bad input.
    """
    started_s = time.perf_counter()
    _require_one_stage(engine)
    deployment = deploy(model, gpu, engine=engine, vllm_version=vllm_version)
    _require_fit(deployment, has_step_times=step_time_model is not None)
    roofline = _roofline(deployment.model, composition, Traffic(sampling, routing))
    given = None if step_time_model is None else _step_time(step_time_model)
    step_time = given or roofline(deployment.gpu, deployment.engine)
    requests = as_trace(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit)
    config = scheduler_config(deployment.engine, deployment.plan)
    records = simulation.simulate(requests, config, step_time, on_progress=progress, step_log=step_log).merged
    load = load_json(requests, request_rate=request_rate, rate_scale=rate_scale, limit=limit)
    summary = _summary(deployment, engine, load, records)
    found = what_limits(records, config, deployment.gpu, deployment.engine, None if given else roofline)
    summary["limits"] = found
    summary["step_time"] = _timed_by(step_time_model, composition, sampling, routing)
    num_gpus, price = deployment.engine.num_gpus, deployment.gpu.price_usd_per_hour
    summary |= cost(summary, num_gpus=num_gpus, usd_per_hour=price)
    summary["seed"] = seed
    replayed = _Replayed(deployment, requests, config, step_time, composition, is_given=given is not None)
    summary["confidence"] = _confidence(replayed, summary, intervals=intervals)
    summary["wall_time_s"] = time.perf_counter() - started_s
    return Result(summary, deployment, requests, records)


def _require_one_stage(engine: EngineConfig) -> None:
    if engine.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size {engine.pipeline_parallel_size} is planned by `servecast memory` but not simulated; "
            "use tensor_parallel_size instead."
        )


def read_measured(
    files: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
) -> "tuple[Run, ...]":
    """Measured runs from files: Servecast's format, or JSON of `vllm bench serve --save-result --save-detailed`.

    The latter names no server: `gpu`, `engine` and `vllm_version` do, and `model` where its `model_id` is none. What it
    leaves open stands in the `note` of its run. Raises RunsError for what cannot be read.
    """
    from sim.measure.bench import Server
    from sim.measure.bench import read_measured as read_runs

    paths = [files] if isinstance(files, str | Path) else files
    return read_runs([Path(path) for path in paths], Server(model, gpu, engine.given, vllm_version))


def validate(
    runs: "str | Path | Sequence[Run]",
    *,
    only_known_args: bool = False,
    gpu: str | Path | HardwareProfile | None = None,
    composition: Composition = "additive",
    seed: int = 0,
    intervals: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> "Validation":
    """Replay measured runs, those of a file or as `read_measured` returned them, and compare.

    `only_known_args` leaves out runs whose engine arguments are unknown; `gpu` stands in for the GPUs that they name.
    `intervals` replays each run twice more, for the interval of each predicted figure. `progress` is called with (done, all)
    runs. Raises SimError for bad input; runs that cannot be replayed say why.
    """
    from sim.measure import validate as validation

    chosen = _chosen(runs, only_known_args=only_known_args)
    profile = load_gpu(gpu) if isinstance(gpu, str | Path) else gpu
    judge = validation.by_known_runs if intervals else None
    return validation.validate(chosen, gpu=profile, composition=composition, seed=seed, judge=judge, progress=progress)


def calibrate(
    runs: "str | Path | Sequence[Run]",
    gpu: str | Path,
    *,
    only_known_args: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "Calibration":
    """Fit a few named factors of a GPU's profile, a name or YAML, to the runs measured on it; `write` keeps the result.

    Errors before and after are given for runs fitted to and for runs held out; `verdict` says whether it helped beyond
    noise. `progress` is called with (done, all) fits. Raises SimError for bad input.
    """
    from sim.measure import calibrate as calibration

    return calibration.calibrate(_chosen(runs, only_known_args=only_known_args), gpu, progress=progress)


def _chosen(runs: "str | Path | Sequence[Run]", *, only_known_args: bool) -> "Sequence[Run]":
    from sim.measure.runs import select

    return select(read_measured(runs) if isinstance(runs, str | Path) else runs, only_known_args=only_known_args)


def _require_fit(deployment: Deployment, *, has_step_times: bool) -> None:
    """Blocks that an override asks for beyond the memory there is are a what-if; too few for one request are a mistake."""
    plan, engine = deployment.plan, deployment.engine
    if plan.feasible or (engine.num_gpu_blocks_override and has_step_times):
        return
    if engine.num_gpu_blocks_override:
        config = scheduler_config(engine, plan)
        if can_ever_fit(config.max_model_len, config):
            return
    raise DoesNotFitError(f"{deployment} does not start: {plan.reason}")


def _timed_by(
    given: str | Path | StepTimeModel | None, composition: Composition, sampling: Sampling, routing: Routing
) -> dict[str, str]:
    """What step times come from: the roofline and its choices, or what was given in its place."""
    if given is None:
        return {"model": "roofline", "composition": composition, "sampling": sampling, "expert_routing": routing}
    return {"model": str(given) if isinstance(given, str | Path) else type(given).__name__}


def _roofline(model: ModelSpec, composition: Composition, traffic: Traffic) -> StepTimeOn:
    """The model's step times on any GPU and under any engine arguments."""
    return lambda gpu, engine: steptime.step_time_model(model, gpu, engine, composition=composition, traffic=traffic)


def _step_time(given: str | Path | StepTimeModel) -> StepTimeModel:
    return steptime.load_step_time_model(given) if isinstance(given, str | Path) else given


def _summary(deployment: Deployment, given: EngineConfig, load: dict[str, Any], records: Records) -> dict[str, Any]:
    """What was run, and what came of it."""
    engine = deployment.engine
    return {
        "model_id": deployment.model.name,
        "gpu": deployment.gpu.name,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "engine": given.to_json(),
        **load,
        "vllm_version": engine.vllm_version,
        "servecast_version": __version__,
    } | _figures(deployment, records)


def _figures(deployment: Deployment, records: Records) -> dict[str, Any]:
    """All that follows from the records."""
    dispatch = GraphDispatch.of(deployment.engine)
    return summarize(records, num_gpu_blocks=deployment.plan.num_gpu_blocks, dispatch=dispatch)


class _Replayed(NamedTuple):
    """What is replayed, to be replayed with step times that are off, and at other rates."""

    deployment: Deployment
    requests: Trace
    config: SchedulerConfig
    step_time: StepTimeModel
    composition: Composition
    is_given: bool  # the step times are

    def replay(self, factor: float, rate_share: float) -> dict[str, Any]:
        """The figures of a replay with step times and request rate so many times what they are."""
        step_time = PerturbedStepTime(self.step_time, all_off_by(factor))
        records = simulation.simulate(scale_rate(self.requests, rate_share), self.config, step_time).merged
        return _figures(self.deployment, records)


def _confidence(replayed: _Replayed, summary: dict[str, Any], *, intervals: bool) -> dict[str, Any]:
    """How far the forecast can be trusted, by the errors on measured runs like it."""
    model, gpu, engine, _ = replayed.deployment
    load = regime(summary)
    found = (
        None if replayed.is_given else confidence(traits(model, gpu, engine, load, composition=replayed.composition))
    )
    if not intervals or load is None:
        return confidence_json(found)
    late_s = 0.0 if replayed.is_given else gpu.operators.host.front_end_s
    rate = replayed.requests.request_rate
    return forecast(found, summary, replayed.replay, request_rate=rate, late_ms=late_s / MS)


def _frame(columns: Columns) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(columns)
