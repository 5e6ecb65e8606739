"""Data-parallel ranks of a mixture of experts: they step together, whoever has no work runs a dummy batch.

Mirrors vLLM's DPEngineCoreProc and the balancer before it (0.32) as `golden/RULES_SCALING.md`, section 7, has recorded
them: a wave of steps begins with a request and ends where ranks look at each other and none has work left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.engine.config import SchedulerConfig
from sim.steptime.protocol import StepShape, StepTimeModel
from tests.reference.replica import step_shape
from tests.reference.request import Request
from tests.reference.scheduler import Batch, Scheduler

DUMMY_BATCH = StepShape(num_decodes=1, decode_context_tokens=1, chunks=(), num_sampled=1)


class Counts(NamedTuple):
    """What a rank tells the balancer of itself."""

    num_waiting: int
    num_running: int
    kv_cache_usage: float


class Balancer:
    """One API server's choice of a rank for each request."""

    def __init__(self, num_ranks: int, num_clients: int = 1, client: int = 0) -> None:
        self.counts = [Counts(0, 0, 0.0)] * num_ranks
        self.ranks: dict[str, int] = {}
        self._num_clients = num_clients
        self._start = num_ranks * client // num_clients

    def choose(self, request_id: str, rank: int | None = None) -> int:
        """The first of the lowest score from a place that moves on; a rank that is asked for is not balanced."""
        if request_id in self.ranks:
            return self.ranks[request_id]
        if rank is None:
            num_ranks = len(self.counts)
            rank = min(((self._start + turn) % num_ranks for turn in range(num_ranks)), key=self._score)
            self._start = (self._start + 1) % num_ranks
            counts = self.counts[rank]
            self.counts[rank] = counts._replace(num_waiting=counts.num_waiting + self._num_clients)
        self.ranks[request_id] = rank
        return rank

    def _score(self, rank: int) -> float:
        waiting, running, usage = self.counts[rank]
        num_in_flight = list(self.ranks.values()).count(rank)
        return max(self._num_clients * num_in_flight, waiting + running) + waiting * 6 * max(0.0, usage - 0.5)


@dataclass
class Iteration:
    """One step of all ranks: a batch for each, None for a dummy, and who finished with it."""

    start_s: float
    end_s: float
    wave: int
    counter: int
    batches: list[Batch | None]
    num_free_blocks: list[int]
    finished: list[list[Request]]


class Ranks:
    """Ranks in lock step; every `sync_interval` steps, and after the first, they look whether anybody has work."""

    def __init__(
        self,
        num_ranks: int,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        *,
        sync_interval: int = 16,
        prefill_interval: int = 1,
        counts_interval_s: float = 0.1,
    ) -> None:
        self._schedulers = [Scheduler(config) for _ in range(num_ranks)]
        self._num_usable_blocks = config.num_usable_blocks
        self._step_time = step_time
        self._sync_interval = sync_interval
        self._prefill_interval = prefill_interval
        self._counts_interval_s = counts_interval_s
        self._published = -1
        self._arriving: list[Request] = []
        self._last_counts = [self._counts(scheduler) for scheduler in self._schedulers]
        self.balancer = Balancer(num_ranks)
        self.routes: list[tuple[float, str, int]] = []
        self.iterations: list[Iteration] = []

    def serve(self, requests: Sequence[Request]) -> None:
        """Everything until the last answer, wave by wave."""
        self._arriving = list(requests)
        now_s, wave = 0.0, 0
        routed: list[tuple[Request, int]] = []
        while self._arriving or routed:
            if not routed:
                now_s = max(now_s, self._arriving[0].arrival_s)
            counter, is_over = 0, False
            while not is_over:
                for request, rank in [*routed, *self._routed(until_s=now_s)]:
                    self._schedulers[rank].add_request(request)
                now_s, routed = self._step(now_s, wave, counter)
                counter += 1
                looks = counter == 1 or counter % self._sync_interval == 0
                is_over = looks and not any(scheduler.has_requests for scheduler in self._schedulers)
            wave += 1

    def _routed(self, until_s: float, *, before: bool = False) -> list[tuple[Request, int]]:
        """Ranks for the requests that arrive until then, each by what is known when it arrives."""
        chosen = []
        while self._arriving:
            arrival_s = self._arriving[0].arrival_s
            if arrival_s > until_s or (before and arrival_s == until_s):
                break
            request = self._arriving.pop(0)
            chosen.append((request, self._choose(request)))
        return chosen

    def _choose(self, request: Request) -> int:
        published = int(request.arrival_s // self._counts_interval_s)
        if published > self._published:
            self._published = published
            self.balancer.counts = list(self._last_counts)
        rank = self.balancer.choose(request.request_id)
        self.routes.append((request.arrival_s, request.request_id, rank))
        return rank

    def _counts(self, scheduler: Scheduler) -> Counts:
        usage = 1.0 - scheduler.kv.pool.num_free_blocks / self._num_usable_blocks
        return Counts(len(scheduler.waiting), len(scheduler.running), usage)

    def _step(self, now_s: float, wave: int, counter: int) -> tuple[float, list[tuple[Request, int]]]:
        """When the step is over, and who has arrived by then: the ranks see them after they have looked at each other."""
        is_throttled = counter % self._prefill_interval != 0
        batches: list[Batch | None] = []
        for scheduler in self._schedulers:
            batch = scheduler.schedule(is_throttled=is_throttled)
            batches.append(None if batch.did_nothing else batch)
        self._last_counts = [self._counts(scheduler) for scheduler in self._schedulers]
        free = [scheduler.kv.pool.num_free_blocks for scheduler in self._schedulers]
        shapes = [DUMMY_BATCH if batch is None or not batch.rows else step_shape(batch) for batch in batches]
        end_s = now_s + max(self._step_time.step_s(shape) for shape in shapes)
        routed = self._routed(until_s=end_s, before=True)
        finished = []
        for scheduler, launched in zip(self._schedulers, batches, strict=True):
            _, ended = scheduler.update(launched) if launched else ([], [])
            finished.append(ended)
            for request in ended:
                request.finish_s = end_s
                del self.balancer.ranks[request.request_id]
        self.iterations.append(Iteration(now_s, end_s, wave, counter, batches, free, finished))
        return end_s, routed
