"""One scheduling pass: who runs how many tokens in the next step. Knows no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py, from 0.8.5 to 0.33 by `config.rules`: there is no
prefill and no decode phase, only tokens that a request still wants. Deliberate differences: every request stops at its
output length (no EOS), and speculation, LoRA, encoders and KV connectors are not modelled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.engine.config import SchedulerConfig
from sim.errors import EngineCrashError
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.queues import waiting_queue
from tests.reference.request import Request, RequestStatus


class ScheduledRequest(NamedTuple):
    """One row of a batch: tokens on top of those computed before."""

    request: Request
    num_tokens: int
    num_computed_before: int
    num_new_blocks: int
    samples: bool


@dataclass(slots=True)
class Batch:
    """What one step runs, in scheduling order, and what the pass did on the way.

    Ghosts are victims whose tokens still run; nothing comes of them.
    """

    rows: list[ScheduledRequest]
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    ghosts: list[Request] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    num_evictions: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def did_nothing(self) -> bool:
        return not self.rows and not self.preempted


class Grant(NamedTuple):
    num_tokens: int
    num_new_blocks: int


class Pass:
    """The scratch of one scheduling pass: the budget left and what has been granted."""

    def __init__(self, budget: int, longest_chunk: int) -> None:
        self.budget = budget
        self.longest_chunk = longest_chunk
        self.granted: dict[Request, Grant] = {}
        self.computed_by_ghosts: dict[Request, int] = {}
        self.batch = Batch([])

    def grant(self, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        self.granted[request] = Grant(num_tokens, num_new_blocks)
        self.budget -= num_tokens

    def refund(self, request: Request) -> None:
        """Take back what was granted to a request."""
        self.budget += self.granted.pop(request).num_tokens


class Scheduler:
    """The waiting queue, the running list in order of admission, and their KV blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.kv = KVCacheManager(config)
        self.running: list[Request] = []
        self.waiting = waiting_queue(config.scheduling_policy, orders_ties=config.rules.orders_ties_by_id)
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add_request(self, request: Request) -> None:
        self.waiting.add(request)

    def schedule(self) -> Batch:
        """Running requests first, in order of admission; then the waiting, unless someone had to be preempted."""
        this = Pass(self._config.token_budget, self._longest_chunk())
        evictions_before = self.kv.pool.num_evictions
        self._schedule_running(this)
        if not this.batch.preempted:
            self._admit_waiting(this)
        elif self._config.rules.asserts_batch_within_running and len(this.granted) > len(self.running):
            raise EngineCrashError(f"{len(this.granted)} scheduled, {len(self.running)} running")
        this.batch.num_evictions = self.kv.pool.num_evictions - evictions_before
        return self._launch(this)

    def _longest_chunk(self) -> int:
        """The most tokens that one request may get: the long-prefill threshold, where it applies."""
        config = self._config
        num_requests = len(self.running) + len(self.waiting)
        threshold = config.long_prefill_token_threshold
        if num_requests <= 1 and config.rules.lone_request_ignores_threshold:
            threshold = 0
        if threshold and config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, config.max_num_batched_tokens // max(1, num_requests))
        return threshold or config.token_budget

    # -- running ---------------------------------------------------------------------------------------------------

    def _schedule_running(self, this: Pass) -> None:
        index = 0
        while index < len(self.running) and this.budget > 0:
            request = self.running[index]
            num_tokens = self._next_tokens(request, this)
            if num_tokens == 0:
                index += 1
                continue
            num_new_blocks = self.kv.allocate_slots(request, num_tokens)
            while num_new_blocks is None:
                victim = self._victim()
                index -= self._steps_back(victim, index, this)
                self._preempt(victim, this)
                if victim is request:
                    break
                num_new_blocks = self.kv.allocate_slots(request, num_tokens)
            if num_new_blocks is None:
                if self._ends_scan_at_own_preemption:
                    return
                continue
            this.grant(request, num_tokens, num_new_blocks)
            index += 1

    def _next_tokens(self, request: Request, this: Pass) -> int:
        if self._config.rules.stops_at_last_token and request.last_token_is_in_flight:
            return 0
        room = self._config.max_model_len - 1 - request.num_computed_tokens
        return min(request.num_wanted_tokens, this.longest_chunk, this.budget, room)

    def _victim(self) -> Request:
        """FCFS: the last admitted. Priority: the largest (priority, arrival), the first in line among equals."""
        if self._config.scheduling_policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda request: (request.priority, request.arrival_s))

    def _steps_back(self, victim: Request, index: int, this: Pass) -> bool:
        """Whether the scan follows the requests behind a victim as they move up, or passes over the next of them."""
        match self._config.rules.steps_back:
            case "always":
                return self.running.index(victim) < index
            case "scheduled":
                return victim in this.granted
            case "never":
                return False

    def _preempt(self, victim: Request, this: Pass) -> None:
        """Recompute preemption. Where a victim keeps what it was granted in this pass, that counts as computed."""
        self.running.remove(victim)
        self.kv.free(victim)
        if victim in this.granted and self._config.rules.refunds_preempted_tokens:
            this.refund(victim)
        elif victim in this.granted:
            this.batch.ghosts.append(victim)
            this.computed_by_ghosts[victim] = victim.num_computed_tokens
        victim.reset()
        self.waiting.put_back(victim)
        this.batch.preempted.append(victim)

    @property
    def _ends_scan_at_own_preemption(self) -> bool:
        return self._config.scheduling_policy == "fcfs" or not self._config.rules.preempts_past_itself

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _admit_waiting(self, this: Pass) -> None:
        """Admit from the head until one cannot be; those whose preempted tokens still come are passed over."""
        passed_over = []
        skipped = []
        while len(self.waiting) and this.budget > 0 and len(self.running) < self._config.max_running:
            request = self.waiting.peek()
            if request.num_stale_outputs:
                passed_over.append(self.waiting.pop())
            elif self._skips(request, this):
                skipped.append(self.waiting.pop())
            elif not self._admit(request, this):
                break
        for request in reversed(passed_over):
            self.waiting.put_back(request)
        self.waiting.put_back_skipped(skipped)

    def _skips(self, request: Request, this: Pass) -> bool:
        """Whether a prompt that cannot be cut is too long for what is left of the budget, and the next one tried."""
        rules = self._config.rules
        return rules.skips_unchunked_prompts and self._is_too_long(request, self._find_prefix(request), this)

    def _is_too_long(self, request: Request, hit: PrefixHit, this: Pass) -> bool:
        if self._config.enable_chunked_prefill:
            return False
        wanted = request.num_tokens - request.num_computed_tokens - hit.num_tokens
        return min(wanted, this.longest_chunk) > this.budget

    def _find_prefix(self, request: Request) -> PrefixHit:
        """Looked up only for those who have computed nothing; once a ghost, a request has."""
        return self.kv.no_hit if request.num_computed_tokens else self.kv.find_prefix(request)

    def _admit(self, request: Request, this: Pass) -> bool:
        config = self._config
        hit = self._find_prefix(request)
        if self._is_too_long(request, hit, this):
            return False
        computed = request.num_computed_tokens + hit.num_tokens
        num_tokens = min(request.num_tokens - computed, this.longest_chunk, this.budget)
        reserve = config.watermark_blocks if self.running else 0
        if config.scheduler_reserve_full_isl and not self.kv.can_admit(request, hit, reserve=reserve):
            return False
        num_new_blocks = self.kv.allocate_slots(request, num_tokens, hit=hit, reserve=reserve)
        if num_new_blocks is None:
            return False
        self.waiting.pop()
        self._start(request, hit, this)
        this.grant(request, num_tokens, num_new_blocks)
        return True

    def _start(self, request: Request, hit: PrefixHit, this: Pass) -> None:
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += hit.num_tokens
        this.batch.admitted.append(request)
        if hit.num_tokens:
            this.batch.hits[request.request_id] = hit.num_tokens
        if request.num_preemptions == 0:
            request.num_cached_tokens = hit.num_tokens
            self.prefix_cache_queries += request.num_tokens
            self.prefix_cache_hits += hit.num_tokens

    # -- after the pass --------------------------------------------------------------------------------------------

    def _launch(self, this: Pass) -> Batch:
        """Advance every granted request at once: vLLM counts tokens when they are scheduled, not when they return."""
        for request, (num_tokens, num_new_blocks) in this.granted.items():
            is_ghost = request in this.computed_by_ghosts
            before = this.computed_by_ghosts[request] if is_ghost else request.num_computed_tokens
            request.num_computed_tokens += num_tokens
            samples = not is_ghost and request.num_wanted_tokens == 0
            request.num_in_flight_tokens += num_tokens
            if samples:
                request.num_output_placeholders += 1
            this.batch.rows.append(ScheduledRequest(request, num_tokens, before, num_new_blocks, samples))
        return this.batch

    def update(self, batch: Batch) -> tuple[list[Request], list[Request]]:
        """Take in a finished step: the requests that got a token, and those that are finished by it."""
        sampled: list[Request] = []
        finished: list[Request] = []
        for row in batch.rows:
            request = row.request
            request.num_in_flight_tokens -= row.num_tokens
            if not row.samples or request.status is RequestStatus.FINISHED:
                continue
            self._append_token(request)
            sampled.append(request)
            if self._is_complete(request):
                finished.append(request)
        self._finish(finished)
        return sampled, finished

    def _append_token(self, request: Request) -> None:
        request.num_output_tokens += 1
        if request.num_stale_outputs:
            request.num_stale_outputs -= 1
            return
        request.num_output_placeholders -= 1
        self.kv.keep_full_blocks(request, request.num_computed_tokens - request.num_output_placeholders)

    def _is_complete(self, request: Request) -> bool:
        return request.num_output_tokens >= request.max_tokens or request.num_tokens >= self._config.max_model_len

    def _finish(self, requests: Sequence[Request]) -> None:
        waiting = [request for request in requests if request.status is not RequestStatus.RUNNING]
        if waiting:
            self.waiting.remove(waiting)
        for request in requests:
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            request.status = RequestStatus.FINISHED
            self.kv.free(request)

    def queue_ids(self) -> tuple[list[str], list[str]]:
        """Ids of the running, in order of admission, and of the waiting, in order of service."""
        return [request.request_id for request in self.running], _ids(self.waiting.in_order())


def _ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]
