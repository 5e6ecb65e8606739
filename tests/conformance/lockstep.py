"""Recorded ranks in lock step, replayed by the product's ranks and its balancer."""

from collections.abc import Mapping
from typing import Any

from sim.cluster.routers.vllm_dp import Balancer
from sim.engine.metrics import Metrics
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.walking.batch import Batch
from sim.engine.walking.lockstep import LockStep
from tests.conformance.case import load_parts


class Served:
    """Requests as they come, the rank of each, and what the ranks did step by step, as it is recorded."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        trace, config, step_time = load_parts(data)
        source, parallel = RequestSource(trace, config, capacity_too=False), data["dp"]
        self._arriving = list(source)
        self._ranks = LockStep(
            config,
            step_time,
            parallel["ranks"],
            num_keys=source.num_keys(),
            sync_interval=parallel.get("sync_interval", 16),
            prefill_interval=parallel.get("prefill_schedule_interval", 1),
        )
        self._num_usable_blocks = config.num_usable_blocks
        self._counts_interval_s = parallel.get("lb_interval_ns", 100_000_000)
        self._published = -1
        self._counts = self._counts_now()
        self._balancer = Balancer(parallel["ranks"])
        self.routes: list[list[Any]] = []
        self.iterations: list[list[Any]] = []

    def serve(self) -> None:
        """Everything until the last answer."""
        ranks, now_s = self._ranks, 0.0
        routed: list[tuple[Request, int]] = []
        while self._arriving or routed or not ranks.is_paused:
            if ranks.is_paused and not routed:
                now_s = max(now_s, self._arriving[0].arrival_s)
            for request, rank in [*routed, *self._routed(now_s, at_once=True)]:
                ranks.add_request(request, rank)
            wave, counter, start_s = ranks.wave, ranks.counter, now_s
            now_s = ranks.launch(start_s)
            self._counts = self._counts_now()
            steps = [
                _step(batch, scheduler.state.num_free_blocks)
                for batch, scheduler in zip(ranks.batches, ranks.schedulers, strict=True)
            ]
            routed = self._routed(now_s, at_once=False)
            finished = [[progress.request.request_id for progress in rank] for rank in ranks.collect(now_s)]
            for rank, names in enumerate(finished):
                for _ in names:
                    self._balancer.answered(rank)
            self.iterations.append([int(start_s), int(now_s), wave, counter, steps, finished])

    def _routed(self, until_s: float, *, at_once: bool) -> list[tuple[Request, int]]:
        """Ranks for those that arrive before then, or also `at_once`, each by what is known when it arrives."""
        chosen = []
        while self._arriving:
            request = self._arriving[0]
            if request.arrival_s > until_s or (request.arrival_s == until_s and not at_once):
                break
            self._arriving.pop(0)
            published = int(request.arrival_s // self._counts_interval_s)
            if published > self._published:
                self._published = published
                self._balancer.update(self._counts)
            rank = self._balancer.choose()
            self.routes.append([int(request.arrival_s), request.request_id, rank])
            chosen.append((request, rank))
        return chosen

    def _counts_now(self) -> list[Metrics]:
        return [
            Metrics(state.num_waiting, state.num_running, 1.0 - state.num_free_blocks / self._num_usable_blocks)
            for state in (scheduler.state for scheduler in self._ranks.schedulers)
        ]


def _step(batch: Batch | None, num_free_blocks: int) -> Any:
    """What a rank did; 0 for a dummy batch."""
    if batch is None:
        return 0
    rows = [
        [row.progress.request.request_id, row.num_tokens, row.num_computed_before, row.num_new_blocks]
        for row in batch.rows
    ]
    return [rows, [request.request_id for request in batch.preempted], num_free_blocks]


def ranks_in_lock_step(data: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Routes and iterations."""
    served = Served(data)
    served.serve()
    return served.routes, served.iterations
