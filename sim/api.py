"""The composition root: the one place that picks implementations and wires them together."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

import numpy as np

from sim.arguments import arguments_json
from sim.cluster import simulation
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.front_end import Clock
from sim.cluster.records import ClusterRecords
from sim.cluster.users import parse_users, require_no_rate
from sim.deployment import DEFAULTS, Deployment, deploy
from sim.engine.records import Records
from sim.errors import ConfigError, listed
from sim.fleet import DeployedFleet
from sim.jobs import AskedFleet, Jobs, plan_of, several_jobs
from sim.layerwise import deploy_layerwise
from sim.measure.forecast import confidence_json, confidence_of, forecast_of, least_known
from sim.memory.design import GraphMemoryModel
from sim.memory.plan import MemoryPlan
from sim.metrics.breakdown import Breakdown, breakdown
from sim.metrics.columns import Columns, deployed_step_columns, joined, request_columns
from sim.metrics.cost import cost
from sim.metrics.fleet import deployed_json, fleet_over_time, fleet_parts, fleet_summary, gpus_held, held_s
from sim.metrics.handovers import handover_columns, handover_figures
from sim.metrics.offload import offload_columns
from sim.metrics.over_time import ReplicasOverTime, replica_columns, replicas_over_time
from sim.metrics.sent_late import sent_late
from sim.metrics.sharing import pull_columns, sharing_figures
from sim.metrics.slo_classes import limit_figures
from sim.metrics.stages import stage_figures
from sim.metrics.timeline import Timeline, timeline
from sim.metrics.what_limits import what_limits
from sim.report.console import result_table
from sim.report.run_title import run_title
from sim.report.tables import terminal_width
from sim.sharing import OptionsLike
from sim.specs.acceptance import AcceptanceLike
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import FleetLike
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.sampling import Sampling
from sim.specs.slo import Slo, judged_by_request, limits_json, parse_slos
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition, step_time_options
from sim.steptime.protocol import StepTimeModel
from sim.streaming import check_streamable, is_whole, run_stream, streamed_summary
from sim.version import __version__
from sim.workload.load import Load, as_load
from sim.workload.parts import StreamLike, trace_parts
from sim.workload.rates import scale_rate
from sim.workload.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.measure.calibrate import Calibration
    from sim.measure.calibrate_kernels import KernelCalibration
    from sim.measure.runs import Run
    from sim.measure.validate import Validation
    from sim.metrics.kv_blocks import KVCacheMetrics
    from sim.report.page.run import Run as Told

Progress = Callable[[int, int], None]
StepLog = Callable[[dict[str, Any]], None]
AS_REPLAYED: Mapping[str, Any] = {
    "rate_scale": 1.0,
    "request_rate": None,
    "limit": None,
    "progress": None,
    "step_log": None,
}
"""What is left to ask of a trace that has been cut and scaled, of a run that is done again in silence."""
PlotKind = Literal["latency", "timeline", "roofline"]


@dataclass(frozen=True)
class Result:
    """The result of a simulation. `summary` has the keys of `vllm bench serve --save-result`; printing it gives its table.

    `rejected` and `failed` have the reasons why requests were not served, by row of the trace; `kept` is the run, None where
    its records were not to be kept. Of a stream neither the trace nor the run is, and of rejections the first hundred. `asked` are the
    arguments that `simulate` takes to do it again, none of a stream.
    """

    summary: dict[str, Any]
    fleet: DeployedFleet
    replayed: Trace | None
    rejected: Mapping[int, str]
    failed: Mapping[int, str]
    kept: ClusterRecords | None
    asked: Mapping[str, Any] = field(default_factory=dict)
    clients: Clients = AT_THEIR_TIMES

    @property
    def trace(self) -> Trace:
        """The trace as it was replayed. Raises ConfigError where it was streamed."""
        if self.replayed is None:
            raise ConfigError("the requests of a stream are not kept; replay it without `stream`.")
        return self.replayed

    @property
    def run(self) -> ClusterRecords:
        """The records. Raises ConfigError where they were not kept."""
        if self.kept is None:
            how = "without `stream`" if self.replayed is None else "with `keep_records`"
            raise ConfigError(f"the records of this run were not kept; simulate it {how}.")
        return self.kept

    @property
    def deployment(self) -> Deployment:
        """What was deployed; of unlike pools the first."""
        return self.fleet.first

    @property
    def records(self) -> Records:
        """All replicas' records as one."""
        return self.run.merged

    @cached_property
    def seen(self) -> ClusterRecords:
        """The records with requests by the clock that was asked for: what is told of latencies; steps are by the engine's."""
        return self.clients.seen(self.run, self.fleet.front_end)

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

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the steps' time goes, of several pools that of the first. Raises ConfigError where the step times do not say."""
        found = breakdown(self.deployment, self.run.pools[0].leaps)
        if found is None:
            raise ConfigError("step times that are given do not say where they go, and a run without steps has none.")
        return found

    def write(self, folder: str | Path) -> None:
        """Write summary.json, requests.csv, steps.csv, latency.png, timeline.png, report.html and timeline.json (for Perfetto), of a fleet
        replicas.csv, with a `breakdown` in the summary roofline.png; whole or not at all.

        Raises ConfigError where the folder holds anything but an earlier result, or cannot be written.
        """
        from sim.report.folder import write_folder
        from sim.report.page.render import write_page
        from sim.report.page.run import run_page
        from sim.report.trace_events import write_trace_events

        tables = {"requests.csv": self._request_columns(), "steps.csv": self._step_columns()}
        if self._is_fleet:
            pools = [self.fleet.pools[pool].name for pool in self.run.pool_of]
            tables["replicas.csv"] = replica_columns(self._replicas_over_time, pools, self.run.server_of)
        kinds: list[PlotKind] = ["latency", "timeline"]
        if "breakdown" in self.summary:
            kinds.append("roofline")
        plots = {f"{kind}.png": self.plot(kind) for kind in kinds}
        whole = (self.fleet, self.run, self.trace, self._over_time)
        others: dict[str, Callable[[Path], None]] = {
            "report.html": partial(write_page, page=run_page(self.told)),
            "timeline.json": lambda path: write_trace_events(path, *whole),
        }
        write_folder(Path(folder), self.summary, tables, plots, others)

    @cached_property
    def told(self) -> "Told":
        """What pages tell of the run."""
        from sim.report.page.run import Run as Told

        replicas = self._replicas_over_time if self._is_fleet else None
        parts = self.breakdown if "breakdown" in self.summary else None
        return Told(self.summary, self.fleet, self.run, self.seen, self.trace, self._over_time, replicas, parts)

    def write_prometheus(
        self, path: str | Path, *, start_s: float | None = None, kv_cache: "KVCacheMetrics | None" = None
    ) -> None:
        """The run as time series under vLLM's own names, in OpenMetrics' text, from the Unix time `start_s` on (2026-01-01 when None).

        `kv_cache`, of `sim.kv_cache_metrics`, adds the life of blocks. Raises ConfigError where the file cannot be written.
        """
        from sim.metrics.vllm_metrics import sample_times, vllm_metrics
        from sim.report.open_metrics import START_S, write_open_metrics

        deployments = [self.fleet.pools[pool].deployment for pool in self.run.pool_of]
        blocks, lengths = (
            [one.plan.num_gpu_blocks for one in deployments],
            [one.config.max_model_len for one in deployments],
        )
        metrics = vllm_metrics(self.run, blocks, lengths, kv_cache.evictions if kv_cache else ())
        names = {"model_name": self.summary["model_id"], "start_s": START_S if start_s is None else start_s}
        write_open_metrics(Path(path), metrics, sample_times(self.run), **names)

    def write_otlp(self, path: str | Path, *, start_s: float | None = None) -> None:
        """The requests that finished as OpenTelemetry spans, as vLLM exports them, from the Unix time `start_s` on (2026-01-01 when None).

        Raises ConfigError where the file cannot be written.
        """
        from sim.report.open_metrics import START_S
        from sim.report.otlp import write_otlp

        names = {"model_name": self.summary["model_id"], "start_s": START_S if start_s is None else start_s}
        write_otlp(Path(path), self.run, self.trace, **names)

    def plot(self, kind: PlotKind = "timeline") -> "Figure":
        """A matplotlib Figure, as `write` draws it: the engine or the replicas over time, or the distributions of latencies."""
        from sim.report import plots
        from sim.report.breakdown import roofline_figure
        from sim.report.fleet_plots import fleet_figure

        title = run_title(self.summary, plots.TITLE_WIDTH)
        if kind == "latency":
            return plots.latency_figure(self.seen.merged, title=title)
        if kind == "timeline" and self._is_fleet:
            return fleet_figure(self._replicas_over_time, title=title)
        if kind == "timeline":
            return plots.timeline_figure(self.records, num_gpu_blocks=self.summary["num_gpu_blocks"], title=title)
        if kind == "roofline":
            return roofline_figure(self.breakdown, title=title)
        raise ConfigError(f"plot draws {listed([f'`{name}`' for name in get_args(PlotKind)], 'or')}, got {kind!r}.")

    @property
    def _is_fleet(self) -> bool:
        return len(self.run.replicas) > 1

    @cached_property
    def _over_time(self) -> Timeline | None:
        return timeline(self.fleet, self.run)

    @cached_property
    def _replicas_over_time(self) -> ReplicasOverTime:
        blocks = [self.fleet.pools[pool].deployment.plan.num_gpu_blocks for pool in self.run.pool_of]
        return replicas_over_time(self.run, blocks)

    def _request_columns(self) -> Columns:
        columns = request_columns(self.trace, self.seen.merged.requests, self.run.replica if self._is_fleet else None)
        columns |= offload_columns(self.records) | pull_columns(self.run)
        return columns | handover_columns(self.run.handovers) if self.run.handovers else columns

    def _step_columns(self) -> Columns:
        parts = [
            deployed_step_columns(pool.deployment, records.steps)
            for pool, records in zip(self.fleet.pools, self.run.pools, strict=True)
        ]
        columns = joined(parts) if self.fleet.is_unlike else parts[0]
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
    trace: StreamLike,
    *,
    stream: bool = False,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    slo: Sequence[str] = (),
    replicas: int | None = None,
    router: str | Mapping[str, Any] | None = None,
    fleet: FleetLike | None = None,
    kv_store: OptionsLike | None = None,
    kv_pull: OptionsLike | None = None,
    max_concurrency: int | None = None,
    users: int | None = None,
    think_time: float | str | None = None,
    open_loop: bool = False,
    clock: Clock = "engine",
    seed: int = 0,
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    acceptance: AcceptanceLike | None = None,
    layerwise: Mapping[str, Any] | None = None,
    intervals: bool = True,
    keep_records: bool = True,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    step_log: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Replay a trace on a deployment, as `vllm serve` with these arguments would serve it. The same input gives the same result.

    With `stream`, and where the trace is an iterable of parts, it is replayed in one pass and not kept: a trace may be longer than memory, its
    percentiles are those of a sketch, and there are no records and no intervals. `limit` keeps the first requests of the trace and `rate_scale` 2 doubles their rate; `request_rate` R has those n arrive
    over n/R seconds in their own pattern, all at 0 where it is infinite. `slo` are limits such as `ttft_p99=500ms`, which add
    `request_goodput` and `slo_attainment` to the summary. `replicas` equal ones serve behind a `router`, a name or
    `{policy: llm_d, queue: 2}`, which draws from `seed`; `fleet` instead, a YAML file or what stands in one, has pools of unlike
    ones, and may scale them, lose some and turn requests away. Replicas may share KV by a `kv_store`, such as
    `capacity_gib=64`, or by pulls from each other, `kv_pull`. Turns of a session wait for the answer before them, and stages for the one
    before to drain, unless `open_loop`; at most `max_concurrency` requests are in flight. `users` take requests, or sessions,
    one after the other and never mind the trace's times; after an answer a `think_time` passes, in seconds or
    "exponential:5", drawn with `seed`. By the `clock` "client" latencies are as `vllm bench serve` measures them: HTTP, tokenizing and
    streaming delay answers, and who waits for one waits for that. `step_time_model` replaces the
    roofline, whose mixed steps `composition` times; `sampling` "greedy" spares the sampler what the checkpoint's own top-p
    costs, and `expert_routing` says how tokens spread over experts. Drafts of a `speculative_config` fare as `acceptance` says: a mean
    acceptance length, or the shares of verifications in which the first, the first two, ... are accepted, drawn with `seed`.
    `layerwise`, a mapping with `num_kv_buffers`, `block_size`, `num_cpu_blocks` and `savings` or nothing, has one request at a time with its KV
    cache in CPU memory, as nano-vllm does and vLLM does not. `intervals` replays twice more, with step times as short and as long
    as they may be, and gives each figure the interval that makes. `keep_records` False
    leaves nothing but the summary, and takes less memory: no frames, no plots, no folder. `jobs` processes simulate replicas side by
    side, to the same result, where nothing ties these to each other: a router that does not look at them, and clients that wait for no
    answers. `progress` is called with (done, all) requests, `step_log` with
    each step, of several replicas with its `replica`, of ranks in lock step with each of every rank. Raises DoesNotFitError where vLLM would not start, but takes `num_gpu_blocks_override` at its word: as many
    blocks as are asked for, and any number where the step times are given as well. Other SimErrors for bad input.
    """
    arguments = dict(locals())
    started_s = time.perf_counter()
    slos = judged_by_request(parse_slos(slo))
    step_times = step_time_options(composition, sampling, expert_routing, step_time_model, acceptance)
    if stream or not is_whole(trace):
        check_streamable(
            {
                "request_rate": request_rate,
                "fleet": fleet,
                "kv_store": kv_store,
                "kv_pull": kv_pull,
                "max_concurrency": max_concurrency,
                "users": users,
                "think_time": think_time,
                "open_loop": open_loop or None,
                "clock": None if clock == "engine" else clock,
                "acceptance": acceptance,
                "layerwise": layerwise,
                "jobs": None if jobs == 1 else jobs,
                "step_log": step_log,
            }
        )
        asked = AskedFleet(model, gpu, engine, replicas, router, None, vllm_version, step_times)
        parts = trace_parts(trace, rate_scale=rate_scale, limit=limit, seed=seed)
        load_json = {"request_rate": None, "rate_scale": rate_scale, "limit": limit, "seed": seed}
        found = _streamed(asked, parts, slos, load_json, progress)
        found.summary["wall_time_s"] = time.perf_counter() - started_s
        return found
    if users is not None:
        require_no_rate(rate_scale, request_rate)
    load = as_load(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit, seed=seed)
    _check_sampling(load.trace, sampling)
    clients = Clients(parse_users(users, think_time, seed=seed), max_concurrency, open_loop, clock).check(load.trace)
    how: dict[str, Any] = {"vllm_version": vllm_version, "step_times": step_times}
    asked = AskedFleet(model, gpu, engine, replicas, router, fleet, kv_store=kv_store, kv_pull=kv_pull, **how)
    if layerwise is None:
        deployed = asked.deploy()
    elif (fleet, replicas, router, kv_store, kv_pull) == (None, None, None, None, None):
        deployed = DeployedFleet.alike(deploy_layerwise(model, gpu, engine, layerwise, **how), engine)
    else:
        raise ConfigError(
            "layer-wise offload is simulated for one replica; leave replicas, router, fleet, kv_store and kv_pull out."
        )
    if acceptance is not None and all(pool.deployment.accepted is None for pool in deployed.pools):
        raise ConfigError(
            "acceptance says how drafts fare, and nothing drafts; give a speculative_config, or leave it out."
        )
    if step_log is not None and jobs > 1:
        raise ConfigError(f"a step log is written by one process, got jobs {jobs}; leave one of them out.")
    with several_jobs(asked, deployed, load.trace, clients, seed, jobs) as several:
        replayed = _Replayed(deployed, load, slos, clients, seed, several)
        run = replayed.run(on_progress=progress, step_log=step_log)
        summary = _summary(replayed, engine, clients.seen(run, deployed.front_end)) | clients.to_json() | {"seed": seed}
        if clients.wait_for_answers(load.trace) and not users:
            summary["sent_late"] = sent_late(load.trace, run.merged.requests)
        rejected, failed = run.merged.requests.rejected, run.merged.requests.failed
        kept = run if keep_records else None
        del run  # before it is replayed with other step times
        summary["confidence"] = _confidence(replayed, summary, intervals=intervals)
    summary["arguments"] = arguments_json(arguments, simulate.__kwdefaults__ or {})
    summary["wall_time_s"] = time.perf_counter() - started_s
    arguments |= {"trace": load.trace, **AS_REPLAYED}
    return Result(summary, deployed, load.trace, rejected, failed, kept, arguments, clients)


def read_measured(
    files: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    as_given: bool = False,
) -> "tuple[Run, ...]":
    """Measured runs from files: Servecast's format, or JSON of `vllm bench serve --save-result --save-detailed`.

    The latter names no server: `gpu`, `engine` and `vllm_version` do, and `model` where its `model_id` is none. What it
    leaves open stands in the `note` of its run. Where a run's `source` says elsewhere what its file leaves open (arguments that are
    not known, a version), it has that, unless they are to be `as_given`. Raises RunsError for what cannot be read.
    """
    from sim.measure.bench import Server
    from sim.measure.bench import read_measured as read_runs
    from sim.measure.published import completed

    paths = [files] if isinstance(files, str | Path) else files
    runs = read_runs([Path(path) for path in paths], Server(model, gpu, engine.given, vllm_version))
    return runs if as_given else completed(runs)


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


@overload
def calibrate(
    runs: "str | Path | Sequence[Run]",
    gpu: str | Path,
    *,
    kernels: None = None,
    only_known_args: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "Calibration": ...


@overload
def calibrate(
    runs: "str | Path | Sequence[Run]",
    gpu: str | Path,
    *,
    kernels: str | Path,
    only_known_args: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "KernelCalibration": ...


def calibrate(
    runs: "str | Path | Sequence[Run]",
    gpu: str | Path,
    *,
    kernels: str | Path | None = None,
    only_known_args: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> "Calibration | KernelCalibration":
    """Fit a few named factors of a GPU's profile, a name or YAML, to the runs measured on it; `write` keeps the result.

    Errors before and after are given for runs fitted to and for runs held out; `verdict` says whether it helped beyond
    noise. With `kernels`, a folder with a layer profile of the GPU, its operators are fitted to the kernels measured, and runs, of which
    there may be none, are compared before and after. `progress` is called with (done, all) fits. Raises SimError for bad input.
    """
    from sim.measure import calibrate as calibration
    from sim.measure.calibrate_kernels import calibrate_kernels

    chosen = _chosen(runs, only_known_args=only_known_args) if runs or kernels is None else ()
    if kernels is not None:
        return calibrate_kernels(kernels, gpu, chosen)
    return calibration.calibrate(chosen, gpu, progress=progress)


def _chosen(runs: "str | Path | Sequence[Run]", *, only_known_args: bool) -> "Sequence[Run]":
    from sim.measure.runs import select

    return select(read_measured(runs) if isinstance(runs, str | Path) else runs, only_known_args=only_known_args)


def _streamed(
    asked: AskedFleet,
    parts: Iterator[Trace],
    slos: tuple[Slo, ...],
    load_json: Mapping[str, Any],
    progress: Progress | None,
) -> Result:
    """The figures of a trace that comes in parts, which are not kept."""
    fleet = asked.deploy()
    run = run_stream(fleet, parts, slos, seed=load_json["seed"], on_progress=progress)
    return Result(streamed_summary(run, fleet, asked.engine, load_json), fleet, None, run.sketch.rejected, {}, None)


class _Replayed(NamedTuple):
    """What is replayed, and again with step times that are off and at other rates; `slos` are limits on its requests."""

    fleet: DeployedFleet
    load: Load
    slos: tuple[Slo, ...]
    clients: Clients
    seed: int
    several: Jobs | None = None

    def run(
        self,
        factor: float = 1.0,
        rate_share: float = 1.0,
        *,
        on_progress: Progress | None = None,
        step_log: StepLog | None = None,
    ) -> ClusterRecords:
        """A replay with step times and request rate so many times what they are; steps are logged by one process."""
        if self.several:
            return self.several.run(factor, rate_share, on_progress=on_progress)
        trace = scale_rate(self.load.trace, rate_share)
        plan = plan_of(self.fleet, self.load.trace, self.seed, factor)
        return simulation.simulate(
            trace, plan, seed=self.seed, clients=self.clients, on_progress=on_progress, step_log=step_log
        )

    def figures(self, run: ClusterRecords) -> dict[str, Any]:
        figures = fleet_summary(self.fleet, run)
        return figures | limit_figures(self.load.trace, self.slos, run.merged, figures["duration"])

    def at(self, factor: float, rate_share: float) -> dict[str, Any]:
        """The figures of such a replay."""
        run = self.run(factor, rate_share)
        return self.figures(self.clients.seen(run, self.fleet.front_end))


def _summary(replayed: _Replayed, given: EngineConfig, run: ClusterRecords) -> dict[str, Any]:
    """What was run, and what came of it."""
    fleet, trace, figures = replayed.fleet, replayed.load.trace, replayed.figures(run)
    paid_s = held_s(run, figures["duration"])
    return {
        **deployed_json(fleet),
        "engine": given.to_json(),
        **replayed.load.to_json(),
        "vllm_version": fleet.first.engine.vllm_version,
        "servecast_version": __version__,
        "notes": list(dict.fromkeys(note for pool in fleet.pools for note in pool.deployment.run_notes)),
        **({"slo": limits_json(replayed.slos)} if replayed.slos and trace.slo_class is None else {}),
        **figures,
        **fleet_parts(fleet, run),
        **fleet_over_time(fleet, run, paid_s),
        **handover_figures(run),
        **sharing_figures(run),
        **({} if trace.stage is None else {"stages": stage_figures(trace, run.merged.requests)}),
        "limits": what_limits(fleet, run),
        "step_time": fleet.first.step_times.to_json(),
        **cost(figures, held_s=paid_s, num_gpus=gpus_held(fleet, run, paid_s), usd_per_hour=fleet.usd_per_gpu_hour),
    }


def _check_sampling(trace: Trace, sampling: Sampling) -> None:
    if sampling == "greedy" and len(trace.more_answers):
        raise ConfigError(
            "several answers to a prompt (`n`) are sampled, and vLLM refuses them where sampling is greedy; leave sampling out."
        )


def _confidence(replayed: _Replayed, summary: dict[str, Any], *, intervals: bool) -> dict[str, Any]:
    """How far the forecast can be trusted, by the errors on measured runs like it."""
    rate = None if replayed.clients.users else replayed.load.trace.request_rate
    pool = least_known([pool.deployment for pool in replayed.fleet.pools], summary)
    if not intervals:
        return confidence_json(confidence_of(pool, summary))
    return forecast_of(pool, summary, replayed.at, request_rate=rate, clock=replayed.clients.clock)


def _frame(columns: Columns) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(columns)
