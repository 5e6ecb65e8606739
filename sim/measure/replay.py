"""Replays one measured run and computes what its client, or its engine, would have measured."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sim.cluster.clients import Clients
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.deployment import Deployment, deploy
from sim.engine.records import Records, RequestRecords
from sim.errors import RunsError, nearest
from sim.fleet import DeployedFleet
from sim.measure.likeness import Traits, traits_of
from sim.measure.requests import Asked, asked
from sim.measure.runs import OpenLoop, Run
from sim.metrics.latencies import is_completed, time_per_output_token_s
from sim.metrics.statistics import Statistics, statistics
from sim.metrics.summary import summary_of
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.steptime.options import Composition, StepTimeOptions
from sim.steptime.perturbed import PerturbedStepTime, all_off_by
from sim.units import MS

# Arguments that leave such a run as it is: offloaded KV is read only once the cache has overflowed.
WITHOUT_EFFECT = frozenset({"kv_offloading_size_gib"})
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The predicted figures of a run, by stage; None stands for the whole run."""

    served: Deployment
    figures: dict[int | None, Figures]


@lru_cache(maxsize=64)
def _model(name: str, precision: str | None) -> ModelSpec:
    return load_model(name, quantization=precision)


def serve(run: Run, gpu: HardwareProfile | None = None, composition: Composition = "additive") -> Deployment:
    """What the run's server was, with `gpu` in place of the profile it names; raises SimError if it cannot be determined."""
    model, profile = _model(run.model, run.weights_precision), gpu or load_gpu(run.gpu)
    step_times = StepTimeOptions(composition, run.asks_for, run.spreads)
    engine, version = engine_config(run), run.vllm_version
    return deploy(model, profile, engine, vllm_version=version, step_times=step_times).require_runnable()


def engine_config(run: Run) -> EngineConfig:
    """The run's engine arguments. Raises RunsError for those that are not simulated."""
    known = EngineConfig.__dataclass_fields__
    given = {name: value for name, value in run.engine.items() if value is not None and name not in WITHOUT_EFFECT}
    for name in given:
        if name not in known:
            raise RunsError(f"the engine argument {name!r} is not simulated.{nearest(name, known)}")
    arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    return EngineConfig(**arguments)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run ready to be replayed with step times as modelled, or off by a factor."""

    run: Run
    served: Deployment
    requests: Asked

    def records(self, factor: float = 1.0) -> Records:
        """The replay with each step `factor` times as long."""
        requests, served = self.requests, self.served
        step_time = served.step_time if factor == 1.0 else PerturbedStepTime(served.step_time, all_off_by(factor))
        users = None if requests.concurrency is None else Users(requests.concurrency)
        clients = Clients(users, open_loop=users is None, clock=self.run.clock)
        plan = DeployedFleet.alike(served, served.engine).plan(lambda _: step_time)
        return clients.seen(simulate(requests.trace, plan, clients=clients), plan.front_end).merged

    def figures(self, records: Records) -> dict[int | None, Figures]:
        """By stage, None for the whole run."""
        return _figures_by_stage(self.run, records.requests, self.requests)

    def traits(self, records: Records) -> Traits:
        """The facets of the run and of its load; the version is None if the file does not give it."""
        found = traits_of(self.served, summary_of(self.served, records))
        return found if self.run.vllm_version else found._replace(vllm_version=None)


def prepare(
    run: Run, *, gpu: HardwareProfile | None = None, composition: Composition = "additive", seed: int = 0
) -> Prepared:
    """Everything that replays of a run share, with `gpu` in place of the profile that it names. Raises SimError."""
    served = serve(run, gpu, composition)
    return Prepared(run, served, asked(run.workload, seed=seed, block_size=served.config.block_size))


def replay(
    run: Run, *, gpu: HardwareProfile | None = None, composition: Composition = "additive", seed: int = 0
) -> Replayed:
    """Replay a run, with `gpu` in place of the profile that it names. Raises SimError if that is impossible."""
    prepared = prepare(run, gpu=gpu, composition=composition, seed=seed)
    return Replayed(prepared.served, prepared.figures(prepared.records()))


def _figures_by_stage(run: Run, records: RequestRecords, requests: Asked) -> dict[int | None, Figures]:
    done = is_completed(records)
    if not done.any():
        raise RunsError(f"none of its requests can run: {next(iter(records.rejected.values()))}.")
    wanted = [figures.stage for figures in run.measured]
    return {
        stage: _figures(run, records, done if stage is None else done & (requests.stage == stage)) for stage in wanted
    }


def _figures(run: Run, records: RequestRecords, of: Any) -> Figures:
    ttft_s = (records.first_token_s - records.arrival_s)[of]
    e2el_s = (records.finish_s - records.arrival_s)[of]
    tpot_s = time_per_output_token_s(records)[of]
    figures = _in_ms("ttft", statistics(ttft_s)) | _in_ms("e2el", statistics(e2el_s))
    figures |= _in_ms("tpot", statistics(tpot_s[np.isfinite(tpot_s)]))
    if isinstance(run.workload, OpenLoop) and run.workload.output_tokens > 1:
        figures["tpot_mean"] = (figures["e2el_mean"] - figures["ttft_mean"]) / (run.workload.output_tokens - 1)
    makespan_s = float(records.finish_s[of].max() - records.arrival_s[of].min())
    tokens = float(records.generated_tokens[of].sum())
    return figures | {"makespan_s": makespan_s, "output_throughput": tokens / makespan_s}


def _in_ms(name: str, found: Statistics) -> Figures:
    named = {"p50" if what == "median" else what: value for what, value in found._asdict().items()}
    return {f"{name}_{what}": value / MS for what, value in named.items() if value is not None}
