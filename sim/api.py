"""The composition root: the one place that picks implementations and wires them together."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from sim import __version__
from sim.cluster import simulation
from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.users import parse_users, require_no_rate
from sim.deployment import DEFAULTS, Deployment, deploy
from sim.engine.records import Records
from sim.errors import ConfigError
from sim.measure.forecast import confidence_json, confidence_of, forecast_of
from sim.memory.design import GraphMemoryModel
from sim.memory.plan import MemoryPlan
from sim.metrics.columns import Columns, request_columns, step_columns
from sim.metrics.cost import cost
from sim.metrics.replicas import replica_figures
from sim.metrics.sent_late import sent_late
from sim.metrics.slo import Slo, judged_by_request, limits_json, parse_slos, slo_figures
from sim.metrics.stages import stage_figures
from sim.metrics.step_parts import step_parts
from sim.metrics.summary import summary_of
from sim.metrics.what_limits import what_limits
from sim.report.console import result_table
from sim.report.run_title import run_title
from sim.report.tables import terminal_width
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.sampling import Sampling
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition, step_time_options
from sim.steptime.perturbed import PerturbedStepTime, all_off_by
from sim.steptime.protocol import StepTimeModel
from sim.workload.load import Load, as_load
from sim.workload.rates import scale_rate
from sim.workload.readers import TraceLike
from sim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.measure.calibrate import Calibration
    from sim.measure.runs import Run
    from sim.measure.validate import Validation

PlotKind = Literal["timeline", "latency"]


@dataclass(frozen=True)
class Result:
    """The result of a simulation. `summary` has the keys of `vllm bench serve --save-result`; printing it gives its table."""

    summary: dict[str, Any]
    deployment: Deployment
    trace: Trace
    run: ClusterRecords

    @property
    def records(self) -> Records:
        """All replicas' records as one."""
        return self.run.merged

    def __str__(self) -> str:
        return f"{run_title(self.summary, terminal_width())}\n{result_table(self.summary)}"

    def _repr_html_(self) -> str:
        from sim.report.html import simulation_html

        return simulation_html(self.summary)

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """One row a request, in trace order."""
        return _frame(self._request_columns())

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row an engine step, in order of launch, replica by replica."""
        return _frame(self._step_columns())

    def write(self, folder: str | Path) -> None:
        """Write summary.json, requests.csv, steps.csv, latency.png and timeline.png; whole or not at all.

        Raises ConfigError where the folder holds anything but an earlier result, or cannot be written.
        """
        from sim.report.folder import write_folder
        from sim.report.plots import TITLE_WIDTH

        requests = self._request_columns()
        title = run_title(self.summary, TITLE_WIDTH)
        write_folder(Path(folder), self.summary, requests, self._step_columns(), self.records, title=title)

    def plot(self, kind: PlotKind = "timeline") -> "Figure":
        """A matplotlib Figure, as `write` draws it: the engine over time, or the distributions of latencies."""
        from sim.report import plots

        title = run_title(self.summary, plots.TITLE_WIDTH)
        if kind == "latency":
            return plots.latency_figure(self.records, title=title)
        if kind == "timeline" and self._is_fleet:
            raise ConfigError("a timeline shows one engine, and this run has several; simulate one replica.")
        if kind == "timeline":
            return plots.timeline_figure(self.records, num_gpu_blocks=self.summary["num_gpu_blocks"], title=title)
        raise ConfigError(f"plot draws `timeline` or `latency`, got {kind!r}.")

    @property
    def _is_fleet(self) -> bool:
        return len(self.run.replicas) > 1

    def _request_columns(self) -> Columns:
        return request_columns(self.trace, self.records.requests, self.run.replica if self._is_fleet else None)

    def _step_columns(self) -> Columns:
        num_gpu_blocks, dispatch = self.deployment.plan.num_gpu_blocks, self.deployment.graph_dispatch
        steps, step_time = self.records.steps, self.deployment.step_time
        parts = step_parts(steps, step_time)
        columns = step_columns(steps, parts, num_gpu_blocks=num_gpu_blocks, dispatch=dispatch)
        if not self._is_fleet:
            return columns
        counts = [part.leaps.num_ran_steps for part in self.run.replicas]
        return {"replica": np.repeat(np.arange(len(counts)), counts), **columns}


def plan_memory(
    model: str | Path | ModelSpec,
    gpu: str | Path | HardwareProfile,
    *,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    graph_memory: GraphMemoryModel = "measured",
    prediction_layers: bool = False,
) -> MemoryPlan:
    """The uses of each GPU's memory and the number of KV blocks that remain; `reason` says why a model does not fit.

    `graph_memory` "design" plans CUDA graphs by the original design's formula; `prediction_layers` loads those for
    multi-token prediction. The rest as for `simulate`. Raises SimError for bad input.
    """
    return deploy(
        model,
        gpu,
        engine,
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
    slo: Sequence[str] = (),
    replicas: int = 1,
    router: str | Mapping[str, Any] = "least_loaded",
    max_concurrency: int | None = None,
    users: int | None = None,
    think_time: float | str | None = None,
    open_loop: bool = False,
    seed: int = 0,
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    intervals: bool = True,
    progress: Callable[[int, int], None] | None = None,
    step_log: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Replay a trace on a deployment, as `vllm serve` with these arguments would serve it. The same input gives the same result.

    `limit` keeps the first requests of the trace and `rate_scale` 2 doubles their rate; `request_rate` R has those n arrive
    over n/R seconds in their own pattern, all at 0 where it is infinite. `slo` are limits such as `ttft_p99=500ms`, which add
    `request_goodput` and `slo_attainment` to the summary. `replicas` equal ones serve behind a `router`, a name or
    `{policy: llm_d, queue: 2}`, which draws from `seed`. Turns of a session wait for the answer before them, and stages for the one
    before to drain, unless `open_loop`; at most `max_concurrency` requests are in flight. `users` take requests, or sessions,
    one after the other and never mind the trace's times; after an answer a `think_time` passes, in seconds or
    "exponential:5", drawn with `seed`. `step_time_model` replaces the
    roofline, whose mixed steps `composition` times; `sampling` "greedy" spares the sampler what the checkpoint's own top-p
    costs, and `expert_routing` says how tokens spread over experts. `intervals` replays twice more, with step times as short and as long
    as they may be, and gives each figure the interval that makes. `progress` is called with (done, all) requests, `step_log` with
    each step. Raises DoesNotFitError where vLLM would not start, but takes `num_gpu_blocks_override` at its word: as many
    blocks as are asked for, and any number where the step times are given as well. Other SimErrors for bad input.
    """
    started_s = time.perf_counter()
    slos = judged_by_request(parse_slos(slo))
    step_times = step_time_options(composition, sampling, expert_routing, step_time_model)
    deployment = deploy(model, gpu, engine, vllm_version=vllm_version, step_times=step_times).require_runnable()
    if users is not None:
        require_no_rate(rate_scale, request_rate)
    load = as_load(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit, seed=seed)
    clients = Clients(parse_users(users, think_time, seed=seed), max_concurrency, open_loop).check(load.trace)
    _check_replicas(replicas, has_step_log=step_log is not None)
    replayed = _Replayed(deployment, load, slos, replicas, router, clients, seed)
    run = replayed.run(on_progress=progress, step_log=step_log)
    summary = _summary(replayed, engine, run) | clients.to_json() | {"seed": seed}
    if clients.wait_for_answers(load.trace) and not users:
        summary["sent_late"] = sent_late(load.trace, run.merged.requests)
    summary["confidence"] = _confidence(replayed, summary, intervals=intervals)
    summary["wall_time_s"] = time.perf_counter() - started_s
    return Result(summary, deployment, load.trace, run)


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


class _Replayed(NamedTuple):
    """What is replayed, and again with step times that are off and at other rates; `slos` are limits on its requests."""

    deployment: Deployment
    load: Load
    slos: tuple[Slo, ...]
    replicas: int
    router: str | Mapping[str, Any]
    clients: Clients
    seed: int

    def run(
        self, trace: Trace | None = None, step_time: StepTimeModel | None = None, **arguments: Any
    ) -> ClusterRecords:
        deployment = self.deployment
        step_time = step_time or deployment.step_time
        plan = FleetPlan.alike(deployment.config, step_time, self.replicas, self.router)
        return simulation.simulate(trace or self.load.trace, plan, seed=self.seed, clients=self.clients, **arguments)

    def figures(self, run: ClusterRecords) -> dict[str, Any]:
        figures = summary_of(self.deployment, run.merged)
        if self.replicas > 1:
            figures["gpu_busy_fraction"] = run.busy_fraction
        return figures | slo_figures(self.slos, run.merged, figures["duration"])

    def at(self, factor: float, rate_share: float) -> dict[str, Any]:
        """The figures of a replay with step times and request rate so many times what they are."""
        step_time = PerturbedStepTime(self.deployment.step_time, all_off_by(factor))
        trace = scale_rate(self.load.trace, rate_share)
        return self.figures(self.run(trace, step_time))


def _check_replicas(replicas: int, *, has_step_log: bool) -> None:
    if replicas < 1:
        raise ConfigError(f"replicas must be at least 1, got {replicas}.")
    if replicas > 1 and has_step_log:
        raise ConfigError(f"a step log has the steps of one engine, got {replicas} replicas; log a run of one.")


def _fleet(replayed: _Replayed, run: ClusterRecords) -> dict[str, Any]:
    """The figures of the fleet and of each replica; empty for a single replica."""
    if replayed.replicas == 1:
        return {}
    figures = replica_figures(run, replayed.deployment.plan.num_gpu_blocks)
    return {"fleet": {"replicas": replayed.replicas, "router": replayed.router}, "replicas": figures}


def _summary(replayed: _Replayed, given: EngineConfig, run: ClusterRecords) -> dict[str, Any]:
    """What was run, and what came of it."""
    deployment, trace, figures = replayed.deployment, replayed.load.trace, replayed.figures(run)
    engine, price = deployment.engine, deployment.gpu.price_usd_per_hour
    return {
        "model_id": deployment.model.name,
        "gpu": deployment.gpu.name,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "engine": given.to_json(),
        **replayed.load.to_json(),
        "vllm_version": engine.vllm_version,
        "servecast_version": __version__,
        "notes": list(deployment.notes),
        **({"slo": limits_json(replayed.slos)} if replayed.slos else {}),
        **figures,
        **_fleet(replayed, run),
        **({} if trace.stage is None else {"stages": stage_figures(trace, run.merged.requests)}),
        "limits": what_limits(deployment, run),
        "step_time": deployment.step_times.to_json(),
        **cost(figures, num_gpus=engine.num_gpus * replayed.replicas, usd_per_hour=price),
    }


def _confidence(replayed: _Replayed, summary: dict[str, Any], *, intervals: bool) -> dict[str, Any]:
    """How far the forecast can be trusted, by the errors on measured runs like it."""
    deployment, rate = replayed.deployment, None if replayed.clients.users else replayed.load.trace.request_rate
    if not intervals:
        return confidence_json(confidence_of(deployment, summary))
    return forecast_of(deployment, summary, replayed.at, request_rate=rate)


def _frame(columns: Columns) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(columns)
