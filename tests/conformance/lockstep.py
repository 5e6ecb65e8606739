"""Recorded ranks in lock step, replayed by the product's process, its ranks' engines and its balancer."""

from collections.abc import Mapping, Sequence
from typing import Any

import simpy

from sim.cluster.arrivals import arrivals
from sim.cluster.gateway import Gateway
from sim.cluster.lock_step import LiveRanks, RankCore
from sim.cluster.rank_log import RankLog
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Router
from sim.engine.balancer import Balancer
from sim.engine.core import EngineCore
from sim.engine.metrics import Metrics
from sim.engine.rank_group import LockStepRules, RankGroup
from sim.engine.recorder import Recorder
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.step_log import LogRow, StepLogger
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import PLAIN, Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.step_log import WalkLogger
from tests.conformance.case import load_parts


class RecordedRouter(Router):
    """The balancer, told as the recorder told it: what ranks were like after the last step, at the first arrival of each interval."""

    listens = True

    def __init__(self, num_ranks: int, interval_s: float, rows: Sequence[LogRow]) -> None:
        self.group: RankGroup | None = None
        self._rows = rows
        self.routes: list[list[Any]] = []
        self._interval_s = interval_s
        self._published = -1
        self._balancer = Balancer(num_ranks)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        published = int(request.arrival_s // self._interval_s)
        if published > self._published:
            self._published = published
            self._balancer.update(self._counts(request.arrival_s))
        rank = self._balancer.choose()
        self.routes.append([int(request.arrival_s), request.request_id, rank])
        return replicas[rank]

    def _counts(self, now_s: float) -> list[Metrics]:
        """Those of the last step that was launched; what came back after it is not yet told."""
        assert self.group is not None, "ranks are made with a gateway, which has a router"
        at_s = self._rows[-1]["end"] if self.group.is_paused and self._rows else now_s
        return self.group.metrics(at_s)

    def answered(self, request: Request, replica: int) -> None:  # noqa: ARG002 - the interface
        self._balancer.answered(replica)


def ranks_in_lock_step(data: Mapping[str, Any], engine: str) -> tuple[list[Any], list[Any]]:
    """Routes and iterations."""
    trace, config, step_time = load_parts(data)
    parallel, source = data["dp"], RequestSource(trace, config, capacity_too=False)
    table, rows = RequestTable(source), list[LogRow]()
    interval = parallel.get("prefill_schedule_interval", 1)
    log = RankLog(rows.append, [{"rank": rank} for rank in range(parallel["ranks"])])
    modes = PLAIN if interval == 1 else Modes(throttle_interval=interval)

    def core(rank: int) -> RankCore:
        emit, num_keys = log.of_rank(rank), source.num_keys()
        if engine == "walking" or modes != PLAIN:
            recorder, logger = WalkRecorder(table, rank), WalkLogger(emit)
            return WalkingCore(config, step_time, recorder, start_s=0.0, modes=modes, num_keys=num_keys, log=logger)
        return EngineCore(
            config, step_time, Recorder(table, rank), start_s=0.0, num_keys=num_keys, log=StepLogger(emit)
        )

    env = simpy.Environment()
    router = RecordedRouter(parallel["ranks"], parallel.get("lb_interval_ns", 100_000_000), rows)
    gateway = Gateway(env, router)
    cores = [core(rank) for rank in range(parallel["ranks"])]
    rules = LockStepRules(parallel.get("sync_interval", 16), prefill_interval=interval)
    depth = config.num_batches_in_flight
    group = router.group = RankGroup(cores, step_time, rules, num_batches_in_flight=depth, start_s=0.0, log=log)
    gateway.replicas = LiveRanks(env, cores, group, gateway.answered, None, 0).replicas
    env.process(arrivals(env, source, gateway.submit))
    env.run()
    return router.routes, _iterations(rows, parallel["ranks"])


def _iterations(rows: Sequence[LogRow], num_ranks: int) -> list[Any]:
    """Rows of ranks, put together step by step."""
    steps: dict[tuple[int, int], list[LogRow]] = {}
    for row in rows:
        steps.setdefault((row["wave"], row["step"]), []).append(row)
    iterations = []
    for (wave, step), found in sorted(steps.items()):
        assert len(found) == num_ranks, "each rank has a row"
        ranks = sorted(found, key=lambda row: int(row["rank"]))
        did = [[row["sched"], row["preempted"], row["free"]] if "sched" in row else 0 for row in ranks]
        finished = [row.get("finished", []) for row in ranks]
        iterations.append([int(ranks[0]["t"]), int(ranks[0]["end"]), wave, step, did, finished])
    return iterations
