"""One scheduling pass: who runs how many tokens in the next step. Knows no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py, from 0.8.5 to 0.33 by `config.engine.rules`: there is no
prefill and no decode phase, only tokens that a request still wants. Speculation, pipeline stages, adapters and KV from
elsewhere follow 0.32. Deliberate differences: every request stops at its output length (no EOS), and encoders are not
modelled.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from sim.engine.config import SchedulerConfig
from sim.errors import EngineCrashError
from tests.reference.common_reads import num_spared
from tests.reference.connector import Connector, connector
from tests.reference.kv_cache import KVCacheManager, PrefixHit, blocks_for, prefill_end
from tests.reference.modes import PLAIN, Modes
from tests.reference.queues import FairShareQueue, FcfsQueue, WaitingQueue, urgency, waiting_queue
from tests.reference.request import Request, RequestStatus
from tests.reference.throttle import Throttle


class ScheduledRequest(NamedTuple):
    """One row of a batch: tokens on top of those computed before, the last `num_drafts` of them drafts.

    `attempt` is that of the request when it was scheduled.
    """

    request: Request
    num_tokens: int
    num_computed_before: int
    num_new_blocks: int
    samples: bool
    num_drafts: int = 0
    is_padded: bool = False
    attempt: int = 0

    @property
    def decodes(self) -> bool:
        """As vLLM's kernels see it: a token, and drafts behind it."""
        return self.num_tokens == 1 + self.num_drafts


@dataclass(slots=True)
class Batch:
    """What one step runs, in scheduling order, and what the pass did on the way.

    Ghosts are victims whose tokens still run; nothing comes of them. `external` counts the tokens that came from
    elsewhere within the pass, `num_spared` those that decodes need not read from memory.
    """

    rows: list[ScheduledRequest]
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    ghosts: list[Request] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)
    external: dict[str, int] = field(default_factory=dict)
    num_evictions: int = 0
    num_swapped_blocks: int = 0
    num_drafts_next: int = 0
    is_throttled: bool = False
    num_spared: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def did_nothing(self) -> bool:
        return not self.rows and not self.preempted


class Outcome(Enum):
    """What an attempt at admission comes to."""

    ADMITTED = auto()
    LOADS = auto()
    PASSED_OVER = auto()
    SKIPPED = auto()
    STOPS = auto()


class Grant(NamedTuple):
    num_tokens: int
    num_new_blocks: int
    num_padded: int = 0


class Pass:
    """The scratch of one scheduling pass: the budgets left and what has been granted."""

    def __init__(self, budget: int, input_budget: int, draft_slots: int, longest_chunk: int) -> None:
        self._budget = budget
        self._input_budget = input_budget
        self._draft_slots = draft_slots
        self.longest_chunk = longest_chunk
        self.granted: dict[Request, Grant] = {}
        self.computed_by_ghosts: dict[Request, int] = {}
        self.has_unfinished_prefill = False
        self.admits_prefill = False
        self.defers_prefills = False
        self.batch = Batch([])

    @property
    def budget(self) -> int:
        """Tokens that one more request could get."""
        return max(0, min(self._budget, self._input_budget - self._draft_slots))

    def grant(self, request: Request, num_tokens: int, num_new_blocks: int, num_padded: int = 0) -> None:
        self.granted[request] = Grant(num_tokens, num_new_blocks, num_padded)
        self._budget -= num_tokens
        self._input_budget -= num_tokens + self._draft_slots

    def refund(self, request: Request) -> None:
        """Take back what was granted to a request."""
        num_tokens = self.granted.pop(request).num_tokens
        self._budget += num_tokens
        self._input_budget += num_tokens + self._draft_slots


class Scheduler:
    """The waiting queue, the running list in order of admission, and their KV blocks.

    `holding` has those that wait and hold blocks: what is loaded for them is on its way, or has come; `swapped` those whose
    blocks are in swap space, the longest there first.
    """

    def __init__(self, config: SchedulerConfig, modes: Modes = PLAIN) -> None:
        self._config = config
        self._modes = modes
        self._spec = modes.speculation
        self.num_drafts = modes.speculation.k if modes.speculation else 0
        self.kv = KVCacheManager(config, modes.speculation)
        self.running: list[Request] = []
        self.waiting = waiting_queue(config.engine.scheduling_policy, orders_ties=config.engine.rules.orders_ties_by_id)
        self.holding = waiting_queue(config.engine.scheduling_policy, orders_ties=config.engine.rules.orders_ties_by_id)
        self.swapped = FcfsQueue()
        self.connector: Connector | None = connector(modes.transfers, self.kv, config)
        self.throttle = Throttle(modes.local_prefill_interval)
        self.num_calls = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._unfinished_prefills: list[Request] = []
        self._charged: dict[Request, int] = {}
        self._finished_since = False
        self._batches_in_flight: list[Batch] = []
        self._unfreed: list[tuple[Batch, Request]] = []

    @property
    def has_requests(self) -> bool:
        return bool(self.running) or self.num_waiting > 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.holding) + len(self.swapped)

    @property
    def has_work(self) -> bool:
        """Whether to call `schedule`: also to tell the worker who has finished, and to hear of transfers."""
        pending = self.connector is not None and self.connector.has_pending
        return self.has_requests or self._finished_since or pending

    def add_request(self, request: Request) -> None:
        self.waiting.add(request)

    def abort(self, request: Request) -> None:
        """A request leaves at once, wherever it stands; tokens in flight for it are dropped, and KV on its way still comes."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        elif request in self.holding.in_order():
            self.holding.remove([request])
        elif request in self.swapped.in_order():
            self.swapped.remove([request])
        else:
            self.waiting.remove([request])
        self._no_longer_prefills(request)
        request.status = RequestStatus.FINISHED
        self._finished_since = True
        if self.connector:
            self.kv.free_passed_windows(request)
            self.connector.aborted(request)
        if not request.is_loading:
            self._give_back(request)

    def schedule(self, *, is_throttled: bool = False) -> Batch:
        """Running requests first, in order of admission; then the waiting, unless someone had to be preempted."""
        self.num_calls += 1
        self._finished_since = False
        self.kv.start_pass()
        budget, spec = self._config.token_budget, self._spec
        input_budget = self._config.engine.max_num_batched_tokens if spec else budget
        this = Pass(budget, input_budget, spec.draft_slots if spec else 0, self._longest_chunk())
        this.batch.is_throttled = is_throttled
        this.defers_prefills = self.throttle.defers(self.running, self._unfinished_prefills, is_throttled=is_throttled)
        evictions_before = self.kv.pool.num_evictions
        self._schedule_running(this)
        if not this.batch.preempted:
            self._admit_waiting(this)
        elif self._config.engine.rules.asserts_batch_within_running and len(this.granted) > len(self.running):
            raise EngineCrashError(f"{len(this.granted)} scheduled, {len(self.running)} running")
        this.batch.num_evictions = self.kv.pool.num_evictions - evictions_before
        if not this.defers_prefills and not this.batch.preempted:
            self.throttle.note(self.waiting, self.holding)
        num_tokens = sum(grant.num_tokens for grant in this.granted.values())
        self.throttle.executed(num_tokens, prefilled=this.has_unfinished_prefill or this.admits_prefill)
        return self._launch(this)

    def _longest_chunk(self) -> int:
        """The most tokens that one request may get: the long-prefill threshold, where it applies."""
        config = self._config
        num_requests = len(self.running) + self.num_waiting
        threshold = config.engine.long_prefill_token_threshold
        if num_requests <= 1 and config.engine.rules.lone_request_ignores_threshold:
            threshold = 0
        if threshold and config.engine.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, config.engine.max_num_batched_tokens // max(1, num_requests))
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
                if self._modes.defers_frees and victim.num_in_flight_tokens:
                    return
                index -= self._steps_back(victim, index, this)
                self._preempt(victim, this)
                if victim is request:
                    break
                num_new_blocks = self.kv.allocate_slots(request, num_tokens)
            if num_new_blocks is None:
                if self._ends_scan_at_own_preemption:
                    return
                continue
            this.has_unfinished_prefill |= request in self._unfinished_prefills
            this.grant(request, num_tokens, num_new_blocks)
            index += 1

    def _next_tokens(self, request: Request, this: Pass) -> int:
        if self._config.engine.rules.stops_at_last_token and request.last_token_is_in_flight:
            return 0
        if self.num_calls < request.eligible_call:
            return 0
        if this.defers_prefills and request in self._unfinished_prefills:
            return 0
        room = self._config.max_model_len - 1 - request.num_computed_tokens
        num_tokens = max(0, min(request.num_wanted_tokens, this.longest_chunk, this.budget, room))
        num_tokens = self._to_a_state(request, request.num_computed_tokens, num_tokens)
        return self._short_of_the_end(request, request.num_computed_tokens, num_tokens)

    def _to_a_state(self, request: Request, start: int, num_tokens: int) -> int:
        """A chunk's tokens, fewer where layers keep states: these are written as a chunk ends, and wanted at the ends of blocks."""
        last = prefill_end(request)
        groups = [group for group in self._config.kv_groups if group.keeps_states]
        if not groups or start >= last:
            return num_tokens
        size, end = self._config.block_size, start + num_tokens
        writes_before_end = end >= last and all(self.kv.can_write_before_end(group, start, last) for group in groups)
        if end < last and (end // size * size > start or size <= self._longest_prompt_chunk):
            end = end // size * size
        stops = []
        if not writes_before_end:
            stops.append(self.kv.last_state(request.num_tokens))
            if start % size:
                stops.append((start // size + 1) * size)
        if start < request.junction < start + num_tokens:
            stops.append(start + (request.junction - start) // size * size)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    @property
    def _longest_prompt_chunk(self) -> int:
        threshold = self._config.engine.long_prefill_token_threshold
        return min(self._config.token_budget, threshold or self._config.token_budget)

    def _short_of_the_end(self, request: Request, num_computed_tokens: int, num_tokens: int) -> int:
        """A chunk's tokens, fewer where it would end just ahead of the known tokens' end, which several drafters need whole."""
        ahead = self._spec.prefill_lookahead if self._spec else 0
        left = request.num_tokens - num_computed_tokens - num_tokens
        if ahead > 1 and 0 < left < ahead:
            return max(0, num_tokens - (ahead - left))
        return num_tokens

    def _victim(self) -> Request:
        """The last admitted, but under priority the largest (priority, arrival), the first in line among equals."""
        if self._config.engine.scheduling_policy != "priority":
            return self.running[-1]
        return max(self.running, key=lambda request: (request.priority, request.arrival_s))

    def _steps_back(self, victim: Request, index: int, this: Pass) -> bool:
        """Whether the scan follows the requests behind a victim as they move up, or passes over the next of them."""
        match self._config.engine.rules.steps_back:
            case "always":
                return self.running.index(victim) < index
            case "scheduled":
                return victim in this.granted
            case "never":
                return False

    def _preempt(self, victim: Request, this: Pass) -> None:
        """Recompute preemption. Where a victim keeps what it was granted in this pass, that counts as computed."""
        self.running.remove(victim)
        self._no_longer_prefills(victim)
        if self.connector:
            self.connector.preempted(victim)
        self.kv.free(victim)
        if victim in this.granted and (self._config.engine.rules.refunds_preempted_tokens or self._modes.swap):
            this.refund(victim)
        elif victim in this.granted:
            this.batch.ghosts.append(victim)
            this.computed_by_ghosts[victim] = victim.num_computed_tokens
        this.batch.preempted.append(victim)
        if self._fits_swap_space(victim):
            this.batch.num_swapped_blocks += self._num_computed_blocks(victim)
            victim.swap_out()
            self.swapped.add(victim)
            return
        victim.reset()
        if self._drops_preempted_outputs:
            victim.num_stale_tokens = 0
        self.waiting.put_back(victim)

    def _num_computed_blocks(self, request: Request) -> int:
        return blocks_for(request.num_computed_tokens, self._config.block_size)

    def _fits_swap_space(self, victim: Request) -> bool:
        """Whether its blocks do, beside those of all who are there."""
        together = [victim, *self.swapped.in_order()]
        return self._modes.swap is not None and self._modes.swap.num_blocks >= sum(
            map(self._num_computed_blocks, together)
        )

    @property
    def _drops_preempted_outputs(self) -> bool:
        return self._modes.transfers is not None and self._modes.transfers.drops_preempted_outputs

    @property
    def _ends_scan_at_own_preemption(self) -> bool:
        return self._config.engine.scheduling_policy != "priority" or not self._config.engine.rules.preempts_past_itself

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _admit_waiting(self, this: Pass) -> None:
        """Admit from the head until one cannot be; those that have to wait for something of their own are passed over."""
        self._charge_answers()
        counts_all = self._config.engine.rules.counts_loras_of_all_running
        loras = {request.lora for request in (self.running if counts_all else this.granted) if request.lora}
        if self._modes.loras is not None and len(loras) > self._modes.loras.max_loras:
            raise EngineCrashError(f"{len(loras)} adapters scheduled, {self._modes.loras.max_loras} allowed")
        passed_over: list[tuple[Request, WaitingQueue]] = []
        skipped: list[Request] = []
        while this.budget > 0 and len(self.running) < self._config.max_running:
            queue = self._next_line()
            if queue is None:
                break
            request = queue.peek()
            outcome = self._try(request, this, loras)
            if outcome is Outcome.STOPS:
                break
            queue.pop()
            match outcome:
                case Outcome.ADMITTED:
                    self._charge_prompt(request)
                case Outcome.PASSED_OVER:
                    passed_over.append((request, self._line_of(request, queue)))
                case Outcome.LOADS:
                    passed_over.append((request, self.holding))
                case Outcome.SKIPPED:
                    skipped.append(request)
        for request, queue in reversed(passed_over):
            queue.put_back(request)
            self.throttle.passed_over(request)
        self.waiting.put_back_skipped(skipped)

    def _next_line(self) -> WaitingQueue | None:
        """Whose head is looked at next, unless that has been swapped out with tokens on their way."""
        lines = [line for line in (self.swapped, self.holding, self.waiting) if len(line)]
        if lines == [self.holding, self.waiting] and not self._config.engine.rules.holders_go_first:
            overtakes = self._config.engine.scheduling_policy == "priority"
            lines.sort(key=lambda line: urgency(line.peek()) if overtakes else 0)
        line = lines[0] if lines else None
        if line is self.swapped and self.swapped.peek().num_samples_in_flight:
            return None
        return line

    def _line_of(self, request: Request, queue: WaitingQueue) -> WaitingQueue:
        """Where a request goes on waiting; one whose load has failed holds no blocks any more."""
        if queue is self.swapped:
            return queue
        holds = request.block_tables or not self._config.engine.rules.holders_go_first
        return self.holding if holds else self.waiting

    def _charge_answers(self) -> None:
        """Two for each token that has come back since the last time."""
        for request, num_charged in self._charged.items():
            self._charged[request] = request.num_output_tokens
            if isinstance(self.waiting, FairShareQueue):
                self.waiting.counters[request.client] += 2 * (request.num_output_tokens - num_charged)

    def _charge_prompt(self, request: Request) -> None:
        """One for each of its tokens, as its request is first admitted."""
        if isinstance(self.waiting, FairShareQueue):
            self.waiting.last_admitted = request.client
            if request not in self._charged:
                self.waiting.counters[request.client] += request.num_prompt_tokens
                self._charged[request] = 0

    def _try(self, request: Request, this: Pass, loras: set[int]) -> Outcome:
        """Admit the request, if possible; what becomes of it otherwise."""
        if self._awaits_kv(request):
            return Outcome.PASSED_OVER
        if request.block_tables and not request.num_computed_tokens:
            self.kv.free(request)
        if request.num_stale_tokens or self._lacks_lora(request, loras):
            return Outcome.PASSED_OVER
        hit = self._find_prefix(request)
        if self._is_too_long(request, hit, this):
            return Outcome.SKIPPED if self._config.engine.rules.skips_unchunked_prompts else Outcome.STOPS
        num_external = 0
        if self.connector and not request.num_computed_tokens:
            longer = self.kv.find_prefix_before_load(request) if self.connector.brings_states else None
            found = self.connector.find(request, longer or hit)
            if found is None:
                return Outcome.PASSED_OVER
            num_external = found
            if num_external and longer:
                hit, request.junction = longer, 0
        if num_external and not request.script.loads_in_step:
            return Outcome.LOADS if self._load(request, hit, num_external) else Outcome.STOPS
        outcome = self._admit(request, hit, num_external, this)
        if outcome is Outcome.ADMITTED:
            loras.update({request.lora} - {0})
        return outcome

    def _awaits_kv(self, request: Request) -> bool:
        """Whether what is loaded for it is on its way; what has come can be found from here on."""
        if not request.is_loading:
            self.kv.keep_full_blocks(request, request.num_loaded_tokens)
            request.num_loaded_tokens = 0
        return request.is_loading

    def _lacks_lora(self, request: Request, loras: set[int]) -> bool:
        lora = request.lora
        limit = self._modes.loras.max_loras if self._modes.loras else None
        return lora > 0 and lora not in loras and len(loras) == limit

    def _is_too_long(self, request: Request, hit: PrefixHit, this: Pass) -> bool:
        """Whether a prompt that cannot be cut is too long for what is left of the budget."""
        if self._config.engine.enable_chunked_prefill:
            return False
        wanted = request.num_tokens - request.num_computed_tokens - hit.num_tokens
        return min(wanted, this.longest_chunk) > this.budget

    def _find_prefix(self, request: Request) -> PrefixHit:
        """Looked up only for those who have computed nothing; once a ghost, a request has."""
        return self.kv.no_hit if request.num_computed_tokens else self.kv.find_prefix(request)

    def _load(self, request: Request, hit: PrefixHit, num_external: int) -> bool:
        """Allocate blocks for what comes from elsewhere, which costs neither budget nor a seat; whether there were any."""
        assert self.connector is not None
        if not self._passes_gate(request, hit, num_external):
            return False
        reserve = self._watermark + self._num_reserved_blocks()
        if self.kv.allocate_slots(request, 0, hit=hit, num_external=num_external, reserve=reserve) is None:
            return False
        request.is_loading = True
        self._prefills(request)
        request.num_loaded_tokens = hit.num_tokens + num_external
        self.connector.load(request, hit, num_external)
        if request.num_preemptions == 0:
            self.prefix_cache_hits += hit.num_tokens  # it is looked up now, and runs later
        return True

    def _num_reserved_blocks(self) -> int:
        """What unfinished prefills will still ask for, of which one is a load until its request has run to the prompt's end."""
        spec, config = self._spec, self._config
        ahead = 1 + spec.k + spec.lookahead if spec else 0
        needed = sum(self.kv.num_still_to_take(request, ahead) for request in self._unfinished_prefills)
        num_groups = sum(not group.keeps_states for group in config.kv_groups)
        return needed + blocks_for(ahead, config.block_size) * num_groups

    def _prefills(self, request: Request) -> None:
        if request not in self._unfinished_prefills:
            self._unfinished_prefills.append(request)

    def _no_longer_prefills(self, request: Request) -> None:
        if request in self._unfinished_prefills:
            self._unfinished_prefills.remove(request)

    def _passes_gate(self, request: Request, hit: PrefixHit, num_external: int) -> bool:
        return not self._config.engine.scheduler_reserve_full_isl or self.kv.can_admit(
            request, hit, reserve=self._watermark, num_external=num_external
        )

    @property
    def _watermark(self) -> int:
        return self._config.watermark_blocks if self.running else 0

    def _admit(self, request: Request, hit: PrefixHit, num_external: int, this: Pass) -> Outcome:
        computed = request.num_computed_tokens + hit.num_tokens + num_external
        wanted = request.num_tokens - computed
        if this.defers_prefills and wanted > 1:
            return Outcome.STOPS
        num_tokens = self._to_a_state(request, computed, min(wanted, this.longest_chunk, this.budget))
        if num_tokens == 0:
            return Outcome.STOPS
        num_tokens = self._short_of_the_end(request, computed, num_tokens)
        if num_tokens == 0:
            passes_over = self._config.engine.rules.passes_over_short_chunks
            return Outcome.PASSED_OVER if passes_over else Outcome.STOPS
        num_padded = self._num_padded(wanted, computed, this)
        if self._to_a_state(request, computed, num_tokens + num_padded) < num_tokens + num_padded:
            num_padded = 0
        if num_tokens + num_padded > this.budget or not self._passes_gate(request, hit, num_external):
            return Outcome.STOPS
        num_new_blocks = self.kv.allocate_slots(
            request, num_tokens + num_padded, hit=hit, num_external=num_external, reserve=self._watermark
        )
        if num_new_blocks is None:
            return Outcome.STOPS
        self._start(request, hit, num_external, this)
        this.admits_prefill |= wanted > 1
        if num_tokens < wanted:
            self._prefills(request)
        this.grant(request, num_tokens + num_padded, num_new_blocks, num_padded)
        return Outcome.ADMITTED

    def _num_padded(self, wanted: int, num_computed_tokens: int, this: Pass) -> int:
        """Drafts that fill up a request that wants one token to the size of the decodes beside it, so that a uniform batch stays one."""
        spec = self._spec
        if spec is None or spec.by_batch_size is not None or wanted != 1 or this.has_unfinished_prefill:
            return 0
        has_running = any(request not in this.batch.admitted for request in this.granted)
        fits = num_computed_tokens + spec.k + 2 <= self._config.max_model_len
        return spec.k if (has_running or num_computed_tokens > 0) and fits else 0

    def _start(self, request: Request, hit: PrefixHit, num_external: int, this: Pass) -> None:
        if request.status is RequestStatus.SWAPPED:
            this.batch.num_swapped_blocks += self._num_computed_blocks(request)
        self.running.append(request)
        self.throttle.forget(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens += hit.num_tokens + num_external
        this.batch.admitted.append(request)
        if hit.num_tokens:
            this.batch.hits[request.request_id] = hit.num_tokens
        if num_external:
            this.batch.external[request.request_id] = num_external
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
            self.prefix_cache_queries += request.num_tokens
            self.prefix_cache_hits += hit.num_tokens

    # -- after the pass --------------------------------------------------------------------------------------------

    def _launch(self, this: Pass) -> Batch:
        """Advance every granted request at once: vLLM counts tokens when they are scheduled, not when they return."""
        batch = this.batch
        batch.num_drafts_next = self._spec.k_after(len(this.granted)) if self._spec else 0
        for request, grant in this.granted.items():
            is_ghost = request in this.computed_by_ghosts
            before = this.computed_by_ghosts[request] if is_ghost else request.num_computed_tokens
            request.num_computed_tokens += grant.num_tokens
            num_beyond = request.num_computed_tokens - request.num_tokens - request.num_output_placeholders
            samples = not is_ghost and num_beyond >= 0
            num_drafts = grant.num_padded or max(0, min(request.num_drafts, num_beyond))
            request.num_drafts = 0
            request.num_in_flight_tokens += grant.num_tokens
            request.num_samples_in_flight += samples
            if samples:
                self._no_longer_prefills(request)
            if samples and self._config.engine.async_scheduling:
                request.num_output_placeholders += 1 + num_drafts
                request.num_drafts = batch.num_drafts_next
                if self._config.engine.rules.paces_decodes:
                    request.eligible_call = self.num_calls + self._modes.pipeline.num_stages
            batch.rows.append(
                ScheduledRequest(
                    request, grant.num_tokens, before, grant.num_new_blocks, samples, num_drafts,
                    is_padded=grant.num_padded > 0, attempt=request.attempt,
                )
            )  # fmt: skip
        batch.num_spared = num_spared([row.request for row in batch.rows if row.decodes], self._config)
        if batch.rows:
            self._batches_in_flight.append(batch)
        if self.connector:
            rows = [(row.request, row.num_computed_before + row.num_tokens) for row in batch.rows]
            self.connector.scheduled(rows, self.kv.drain_states_kept())
        return batch

    def update(self, batch: Batch) -> tuple[list[Request], list[Request]]:
        """Take in a finished step: the requests that got a token, and those that are finished by it."""
        self._free_deferred(batch)
        sampled: list[Request] = []
        finished: list[Request] = []
        for row in batch.rows:
            request = row.request
            request.num_in_flight_tokens -= row.num_tokens
            request.num_samples_in_flight -= row.samples
            if row.attempt != request.attempt and request.num_stale_tokens:
                request.num_stale_tokens -= row.num_tokens
            if not row.samples or request.status is RequestStatus.FINISHED:
                continue
            if row.attempt != request.attempt and self._drops_preempted_outputs:
                continue
            self._take_in(row, batch)
            sampled.append(request)
            if self._is_complete(request):
                finished.append(request)
        self._finish(finished)
        return sampled, finished

    def _take_in(self, row: ScheduledRequest, batch: Batch) -> None:
        """Append the sampled token and the accepted drafts; forget that the rejected ones were computed."""
        request, num_accepted = row.request, 0
        if row.num_drafts:
            num_accepted = 0 if row.is_padded else _verify(request, row.num_drafts)
            batch.accepted[request.request_id] = num_accepted
        num_delivered = 0
        while num_delivered <= num_accepted and not self._is_complete(request):
            request.num_output_tokens += 1
            num_delivered += 1
        if num_delivered != 1:
            batch.delivered[request.request_id] = num_delivered
        if row.attempt != request.attempt:
            return
        num_rejected = row.num_drafts - num_accepted + self._num_trimmed(num_accepted, num_delivered)
        request.num_computed_tokens -= num_rejected
        if self._config.engine.async_scheduling:
            request.num_output_placeholders -= num_rejected + num_delivered
            self.kv.keep_full_blocks(request, request.num_computed_tokens - request.num_output_placeholders)
        elif self._spec:
            if self._config.engine.rules.keeps_verified_blocks:
                self.kv.keep_full_blocks(request, min(request.num_computed_tokens, request.num_tokens - 1))
            if not self._is_complete(request):
                request.num_drafts = _propose(request, batch.num_drafts_next)

    def _num_trimmed(self, num_accepted: int, num_delivered: int) -> int:
        """Accepted drafts behind a request's last token, which count as computed before 0.33."""
        return num_accepted + 1 - num_delivered if self._config.engine.rules.forgets_trimmed_tokens else 0

    def _is_complete(self, request: Request) -> bool:
        return request.num_output_tokens >= request.max_tokens or request.num_tokens >= self._config.max_model_len

    def _finish(self, requests: Sequence[Request]) -> None:
        self.swapped.remove([request for request in requests if request.status is RequestStatus.SWAPPED])
        waiting = [
            request for request in requests if request.status not in {RequestStatus.RUNNING, RequestStatus.SWAPPED}
        ]
        held = set(self.holding.in_order())
        for line, gone in (
            (self.holding, [request for request in waiting if request in held]),
            (self.waiting, [request for request in waiting if request not in held]),
        ):
            if gone:
                line.remove(gone)
        for request in requests:
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            request.status = RequestStatus.FINISHED
            self._finished_since = True
            if not (self.connector and self._is_held_by(self.connector, request)):
                self._give_back(request)

    def _is_held_by(self, connector: Connector, request: Request) -> bool:
        """A connector gets no blocks that windows have passed."""
        self.kv.free_passed_windows(request)
        return connector.finished(request)

    def _give_back(self, request: Request) -> None:
        """Its blocks come free once no batch in flight may write to them."""
        if self._modes.defers_frees and request.num_in_flight_tokens:
            self.kv.forget_states_kept(request)
            self._unfreed.append((self._batches_in_flight[-1], request))
        else:
            self.kv.free(request)

    def _free_deferred(self, batch: Batch) -> None:
        """Blocks that this batch was the last to write to."""
        for request in [request for last, request in self._unfreed if last is batch]:
            self.kv.free(request)
        self._unfreed = [(last, request) for last, request in self._unfreed if last is not batch]
        if batch.rows:
            self._batches_in_flight.remove(batch)

    # -- transfers -------------------------------------------------------------------------------------------------

    def loaded(self, request: Request) -> None:
        """What came from elsewhere is here; the last known token is computed in any case, to sample from it."""
        request.is_loading = False
        if request.status is RequestStatus.FINISHED:  # aborted meanwhile
            self.kv.free(request)
            return
        request.num_computed_tokens = min(request.num_loaded_tokens, request.num_tokens - 1)

    def load_failed(self, request: Request, *, recomputes: bool) -> None:
        """The request is computed here, its blocks given back when it is looked at next; or it ends."""
        request.is_loading = False
        if request.status is RequestStatus.FINISHED:
            self.kv.free(request)
            return
        request.num_loaded_tokens = 0
        if recomputes:
            return
        self.holding.remove([request])
        self._no_longer_prefills(request)
        self.kv.free(request)
        request.status = RequestStatus.FINISHED
        self._finished_since = True

    def queue_ids(self) -> tuple[list[str], list[str], list[str]]:
        """Ids of the running, in order of admission, of the waiting in order of service, and of those that wait and hold blocks."""
        return (
            [request.request_id for request in self.running],
            _ids(self.waiting.in_order()),
            _ids([*self.swapped.in_order(), *self.holding.in_order()]),
        )


def _verify(request: Request, num_drafts: int) -> int:
    accept = request.script.accept
    accepted = min(accept[request.num_verifications % len(accept)], num_drafts)
    request.num_verifications += 1
    return accepted


def _propose(request: Request, most: int) -> int:
    propose = request.script.propose
    if propose is None:
        return most
    proposed = min(propose[request.num_proposals % len(propose)], most)
    request.num_proposals += 1
    return proposed


def _ids(requests: Iterable[Request]) -> list[str]:
    return [request.request_id for request in requests]
