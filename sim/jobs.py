"""`--jobs`: one run on several cores, where nothing ties its replicas to each other.

Each process deploys the fleet anew, as it was asked for, and simulates a share of its replicas (sim/cluster/shares.py). The records
are put together as those of replicas side by side always are, so that results are the same bytes for any number of jobs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan, RouterLike
from sim.cluster.records import ClusterRecords
from sim.cluster.shares import Share, put_together, simulate_share, why_not_in_shares
from sim.deployment import GpuLike, ModelLike, deploy
from sim.errors import ConfigError
from sim.fleet import DeployedFleet, deploy_fleet
from sim.processes import ProcessPool, process_pool
from sim.sharing import OptionsLike
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import MOST_REPLICAS, FleetLike
from sim.steptime.options import StepTimeOptions
from sim.steptime.perturbed import PerturbedStepTime, all_off_by
from sim.workload.rates import scale_rate
from sim.workload.trace import Trace

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AskedFleet:
    """A fleet as it was asked for: the pools of a fleet file, or so many equal servers, its `replicas`. Picklable, where what was asked for is."""

    model: ModelLike
    gpu: GpuLike
    engine: EngineConfig
    replicas: int | None
    router: RouterLike | None
    fleet: FleetLike | None
    vllm_version: str | None
    step_times: StepTimeOptions
    kv_store: OptionsLike | None = None
    kv_pull: OptionsLike | None = None

    def deploy(self) -> DeployedFleet:
        """Raises SimError for a file and a number of replicas, and for what does not start."""
        how: dict[str, Any] = {"vllm_version": self.vllm_version, "step_times": self.step_times}
        shared: dict[str, Any] = {"kv_store": self.kv_store, "kv_pull": self.kv_pull}
        replicas = self.replicas
        if self.fleet is not None:
            if replicas is not None:
                raise ConfigError(
                    f"the pools of `fleet` say how many replicas there are, got replicas {replicas} as well; leave it out."
                )
            return deploy_fleet(
                self.model, self.gpu, self.engine, self.fleet, router=self.router, shared_by=shared, **how
            )
        if replicas is not None and not 1 <= replicas <= MOST_REPLICAS:
            raise ConfigError(f"replicas must be from 1 to {MOST_REPLICAS}, got {replicas}.")
        deployment = deploy(self.model, self.gpu, self.engine, **how).require_runnable()
        return DeployedFleet.alike(deployment, self.engine, replicas or 1, self.router).sharing_kv(**shared)


class ShareTask(NamedTuple):
    """Every `stride`th replica from `first` on, with step times and request rate so many times what they are."""

    first: int
    stride: int
    factor: float = 1.0
    rate_share: float = 1.0


@dataclass(frozen=True)
class Replay:
    """A fleet and the trace that it serves, to be replayed as they are or with step times and a rate that are off."""

    asked: AskedFleet
    trace: Trace
    seed: int

    @cached_property
    def deployed(self) -> DeployedFleet:
        return self.asked.deploy()

    def try_out(self, task: ShareTask) -> Share:
        """The share of a process."""
        plan = plan_of(self.deployed, self.trace, self.seed, task.factor)
        numbers = range(task.first, plan.num_replicas, task.stride)
        return simulate_share(scale_rate(self.trace, task.rate_share), plan, numbers, seed=self.seed)


def plan_of(deployed: DeployedFleet, trace: Trace, seed: int, factor: float) -> FleetPlan:
    """The plan of a fleet whose steps take so many times as long."""
    if factor == 1.0:
        return deployed.plan(trace=trace, seed=seed)
    return deployed.plan(lambda step_time: PerturbedStepTime(step_time, all_off_by(factor)), trace=trace, seed=seed)


class Jobs:
    """Processes that replay shares of one fleet."""

    def __init__(
        self, replay: Replay, deployed: DeployedFleet, pool: ProcessPool[ShareTask, Share], num_jobs: int
    ) -> None:
        self._replay = replay
        self._deployed = deployed
        self._pool = pool
        self._num_jobs = num_jobs

    def run(self, factor: float = 1.0, rate_share: float = 1.0, on_progress: Progress | None = None) -> ClusterRecords:
        """The run, whose requests are told of as each share is done."""
        replay = self._replay
        trace = scale_rate(replay.trace, rate_share)
        tasks = [ShareTask(number, self._num_jobs, factor, rate_share) for number in range(self._num_jobs)]
        shares = []
        for _, share in self._pool.run(tasks):
            shares.append(share)
            if on_progress:
                on_progress(len(trace) * len(shares) // len(tasks), len(trace))
        return put_together(trace, plan_of(self._deployed, replay.trace, replay.seed, factor), shares)


@contextmanager
def several_jobs(
    asked: AskedFleet, deployed: DeployedFleet, trace: Trace, clients: Clients, seed: int, jobs: int
) -> Iterator[Jobs | None]:
    """The processes that replay a fleet, as many as asked for and at most one a replica; None for one job.

    Raises ConfigError where the replicas cannot be simulated apart.
    """
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}.")
    if jobs == 1:
        yield None
        return
    reason = why_not_in_shares(trace, deployed.plan(trace=trace, seed=seed), clients)
    if reason:
        raise ConfigError(f"jobs {jobs} simulates replicas apart from each other, but {reason}; or leave jobs out.")
    replay, num_jobs = Replay(asked, trace, seed), min(jobs, deployed.num_replicas)
    with process_pool(replay, num_jobs) as pool:
        yield Jobs(replay, deployed, pool, num_jobs)
