"""`sim.optimize` and `sim.capacity`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.cluster.front_end import Clock
from sim.deployment import DEFAULTS, GpuLike, ModelLike
from sim.errors import ConfigError, DoesNotFitError
from sim.fleet import deploy_fleet
from sim.report.search import GIVEN
from sim.search.analytic.default_space import default_space
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.answer import Capacity, Optimization, answer
from sim.search.bench_load import DATASET, verification
from sim.search.blueprint import Blueprint
from sim.search.capacity import capacity as find_capacity
from sim.search.evaluate import Scenario
from sim.search.final_selection import with_forecasts
from sim.search.fleet_space import default_fleet_space
from sim.search.highest_rate import OnProbe
from sim.search.optimize import Scorer
from sim.search.optimize import optimize as run_search
from sim.search.relevance import irrelevant_knobs
from sim.search.runner import OnProgress, Runner, executor
from sim.search.scoring import SearchOptions, scenario
from sim.search.space import Space
from sim.search.space_file import parse_knob, read_space
from sim.search.store import Notify, ignore, remembered
from sim.sharing import OptionsLike
from sim.specs.acceptance import AcceptanceLike
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import FleetLike
from sim.specs.sampling import Sampling
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.options import Composition
from sim.steptime.protocol import StepTimeModel
from sim.workload.autotuning import TargetMetric
from sim.workload.readers import TraceLike

MAX_TRIALS = 10_000_000
MAX_SEED = 2**32 - 1  # of Optuna's samplers
SpaceLike = str | Path | Space | Mapping[str, Sequence[Any]]


def optimize(  # noqa: PLR0913 - flat keywords are the public interface
    model: ModelLike,
    gpu: GpuLike,
    trace: TraceLike,
    *,
    objective: str = "throughput",
    slo: Sequence[str] = (),
    space: SpaceLike | None = None,
    knobs: Sequence[str] = (),
    gpus: int | None = None,
    trials: int = 200,
    seed: int = 0,
    scorer: Scorer = "simulated",
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    router: str | None = None,
    fleet: FleetLike | None = None,
    kv_store: OptionsLike | None = None,
    kv_pull: OptionsLike | None = None,
    max_concurrency: int | None = None,
    open_loop: bool = False,
    clock: Clock = "engine",
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    acceptance: AcceptanceLike | None = None,
    parameters: AutotuningParameters | None = None,
    intervals: bool = True,
    executor_name: str = "process",
    workers: int = 1,
    store: str | Path | None = None,
    resume: bool = False,
    bench_dataset: str | Path = DATASET,
    progress: OnProgress | None = None,
    notify: Notify = ignore,
) -> Optimization:
    """The engine arguments that serve a trace best, with the evidence. The same input and seed give the same answer.

    `objective` is throughput, latency (P99 end to end), goodput or cost, or several with commas; `slo` limits percentiles, as
    `ttft_p99=500ms`. `space` is a YAML file, or knobs with their values; without one it is derived from the workload,
    laid out over `gpus` GPUs, and has the `knobs` besides, such as "quantization=null,fp8". `engine` holds what is not searched; `request_rate`, `max_concurrency`, `open_loop`, `clock`, `composition`,
    `sampling`, `expert_routing` and `acceptance` are as for `simulate`, and `router` says how replicas share requests, least_loaded where it is not said.
    `kv_store` and `kv_pull` are as for `simulate` too; they are knobs as well, of texts or None for neither.
    `fleet`, a YAML file or what stands in one as for `simulate`, has pools whose replicas, arguments, router and decider are searched: knobs
    are then `POOL.replicas`, `POOL.max_num_seqs` and so on, `router`, `prefill_router` and `decider`. More than one of `workers` needs a script guarded by
    `if __name__ == "__main__":`. `store` keeps all trials in a SQLite file; `resume` keeps them in the user's cache until
    the search is over. `bench_dataset` is where the line that checks the answer reads its load: the result's `load`
    writes it. `notify` is told in words what is waited for. Raises SimError for bad input, DoesNotFitError where no candidate can serve the trace.
    """
    _check_counts(trials, seed)
    constants = parameters or AutotuningParameters()
    options = SearchOptions(
        objective=objective, slo=slo, engine=engine, vllm_version=vllm_version, rate_scale=rate_scale,
        request_rate=request_rate, limit=limit, router=router, fleet=fleet, kv_store=kv_store, kv_pull=kv_pull,
        max_concurrency=max_concurrency, open_loop=open_loop, clock=clock, composition=composition, sampling=sampling, expert_routing=expert_routing, step_time_model=step_time_model,
        acceptance=acceptance,
    )  # fmt: skip
    shared = scenario(model, gpu, trace, options)
    if fleet is not None:
        _check_fleet(shared, options, scorer)
    workload = trace if isinstance(trace, WorkloadProfile) else _workload(shared, constants)
    searched = _space(shared, space, knobs, gpus, workload, constants)
    with remembered(shared, store, notify, resume=resume) as memory, executor(executor_name, shared, workers) as tries:
        runner = Runner(shared.target, tries, memory, progress)
        findings = run_search(
            shared, searched, runner, trials=trials, seed=seed, scorer=scorer, workload=workload, parameters=constants
        )
        verdict = with_forecasts(shared, findings.verdict, runner, intervals=intervals)
    winner = shared.deploy_fleet(verdict.winner.candidate.params)
    check = verification(shared, winner, shared.trace, bench_dataset)
    return Optimization(answer(replace(findings, verdict=verdict), check), check.load)


def capacity(  # noqa: PLR0913 - flat keywords are the public interface
    model: ModelLike,
    gpu: GpuLike,
    trace: TraceLike,
    *,
    slo: Sequence[str],
    rate: float | None = None,
    request_rate: float | None = None,
    replicas: int | None = None,
    fleet: FleetLike | None = None,
    pool: str | None = None,
    engine: EngineConfig = DEFAULTS,
    vllm_version: str | None = None,
    limit: int | None = None,
    router: str | None = None,
    kv_store: OptionsLike | None = None,
    kv_pull: OptionsLike | None = None,
    max_concurrency: int | None = None,
    open_loop: bool = False,
    clock: Clock = "engine",
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    acceptance: AcceptanceLike | None = None,
    bench_dataset: str | Path = DATASET,
    intervals: bool = True,
    on_probe: OnProbe = ignore,
) -> Capacity:
    """The highest request rate of this shape of traffic that `replicas` replicas serve within all limits, and latency by rate.

    `fleet` instead, a YAML file or what stands in one as for `simulate`, has pools of unlike replicas, and may scale them.
    `rate` (requests/s), also called `request_rate`, asks for the replicas and GPUs that it takes, simulated behind a router;
    of several pools `pool` is sized, by name, and the others stay as they are. `on_probe` is told in words
    what is tried; `kv_store`, `kv_pull`, `max_concurrency`, `open_loop`, `clock` and `acceptance` are as for `simulate`, and a rate at which clients fall behind is too high; `bench_dataset` as for `optimize`. Raises SimError for bad input, DoesNotFitError where the deployment cannot
    serve the trace at all.
    """
    options = SearchOptions(
        slo=slo, engine=engine, vllm_version=vllm_version, limit=limit, router=router, fleet=fleet, kv_store=kv_store, kv_pull=kv_pull,
        max_concurrency=max_concurrency, open_loop=open_loop, clock=clock, composition=composition, sampling=sampling, expert_routing=expert_routing,
        step_time_model=step_time_model, acceptance=acceptance,
    )  # fmt: skip
    shared = scenario(model, gpu, trace, options)
    rate = _one_rate(rate, request_rate)
    found = find_capacity(
        shared,
        rate=rate,
        replicas=replicas,
        pool=pool,
        bench_dataset=bench_dataset,
        intervals=intervals,
        on_probe=on_probe,
    )
    return Capacity(*found)


def _one_rate(rate: float | None, request_rate: float | None) -> float | None:
    if rate is not None and request_rate is not None:
        raise ConfigError(f"`rate` {rate:g} and `request_rate` {request_rate:g} are one option; leave one of them out.")
    return request_rate if rate is None else rate


def _check_counts(trials: int, seed: int) -> None:
    if trials < 1:
        raise ConfigError(f"--trials must be at least 1, got {trials}.")
    if trials > MAX_TRIALS:
        raise ConfigError(f"--trials must be at most {MAX_TRIALS:,}, got {trials:,}.")
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--seed must be from 0 to {MAX_SEED:,}, got {seed}.")


def _check_fleet(shared: Scenario, options: SearchOptions, scorer: Scorer) -> None:
    """Raises SimError for a file that is wrong before anything is searched; pools that do not fit as they are may be made to."""
    if scorer == "analytic":
        raise ConfigError("--scorer analytic has formulas for one deployment; leave it out, or leave out --fleet.")
    assert options.fleet is not None, "a fleet was asked for"
    with suppress(DoesNotFitError):
        deploy_fleet(
            shared.model, shared.gpu, shared.base, options.fleet, router=shared.router,
            shared_by={"kv_store": options.kv_store, "kv_pull": options.kv_pull}, vllm_version=shared.vllm_version, step_times=shared.step_times,
        )  # fmt: skip


def _workload(shared: Scenario, constants: AutotuningParameters) -> WorkloadProfile:
    metric: TargetMetric = "latency" if shared.target.goals[0].name == "latency" else "throughput"
    return WorkloadProfile.from_trace_analysis(shared.trace, target_metric=metric, parameters=constants)


def _space(
    shared: Scenario,
    space: SpaceLike | None,
    knobs: Sequence[str],
    gpus: int | None,
    workload: WorkloadProfile,
    constants: AutotuningParameters,
) -> Space:
    if space is not None and knobs:
        raise ConfigError("--knob adds to the default space; put the knob into the space that is given instead.")
    if space is None and shared.fleet is not None:
        found = default_fleet_space(shared, gpus=gpus)
    elif space is None:
        found = default_space(shared, workload, gpus=gpus, parameters=constants)
        given = shared.base.given
        found = found.without({name: GIVEN for name in found.knobs if name in given})
    elif gpus is not None:
        raise ConfigError("--gpus lays out the default space; put `gpus` into the space file instead.")
    else:
        found = _given_space(space, shared.blueprint)
    found = replace(found, knobs={**found.knobs, **dict(map(parse_knob, knobs))})
    return found.without(irrelevant_knobs(found, shared.trace, shared.vllm_version))


def _given_space(space: SpaceLike, over: Blueprint) -> Space:
    if isinstance(space, Space):
        return replace(space, over=over)
    if isinstance(space, str | Path):
        return read_space(Path(space), over)
    return Space({name: tuple(map(_hashable, values)) for name, values in space.items()}, over=over)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
