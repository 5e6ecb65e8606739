"""One scheduling pass: who runs how many tokens in the next step. Knows no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py (0.32) without touching the decodes. Deliberate
differences: every request stops at its output length (no EOS), and speculation, LoRA, encoders and KV connectors are not
modelled. Passes are numbered; batch `s` is what pass `s` launched, and it is collected when its tokens have come back.

Invariants: `running` is in order of admission and holds three kinds: decodes (counted in `decodes`), prefills (in
`prefills`) and those that only wait for their last token (in `ended`, by the batch that brings it).
"""

from collections.abc import Iterable

from sim.serving import scarcity
from sim.serving.batch import Batch, Chunk
from sim.serving.config import SchedulerConfig
from sim.serving.decode_history import DecodeHistory
from sim.serving.decodes import Decodes
from sim.serving.kv_cache import NO_HIT, KVCacheManager, PrefixHit, best_hit
from sim.serving.queues import WaitingQueue, waiting_queue
from sim.serving.request import Request, RequestStatus
from sim.serving.standing import num_computed_tokens, num_hashed_tokens, num_processed_tokens
from sim.serving.windows import Passings
from sim.steptime.protocol import StepShape

NOBODY: list[Request] = []


class UnexpectedPreemptionError(Exception):
    """A scheduler that counted on none has to preempt a request, whose blocks behind its windows it has not kept apart."""


class Scheduler:
    """The waiting queue, the running requests and their KV blocks."""

    def __init__(self, config: SchedulerConfig, num_keys: int = 0, *, expects_preemption: bool = True) -> None:
        self.config = config
        walks_windows = config.has_windows and config.enable_prefix_caching and (expects_preemption or num_keys > 0)
        self.kv = KVCacheManager(config, num_keys, keys_all=walks_windows)
        self.walks_windows = walks_windows
        self.waiting: WaitingQueue = waiting_queue(config.scheduling_policy)
        self.running: dict[Request, None] = {}
        self.prefills: dict[Request, None] = {}
        self.decodes = Decodes(config.block_size)
        self.passings = Passings(self.kv.windows, config.block_size, config.num_batches_in_flight - 1)
        self.settling: dict[Request, None] = {}
        self.ended: dict[int, list[Request]] = {}
        self.num_collected = 0
        self.history = DecodeHistory()
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._block_size = config.block_size
        self._has_windows = config.has_windows
        self._max_running = config.max_running
        self._watermark_blocks = config.watermark_blocks
        self._token_budget = config.token_budget
        self._depth = config.num_batches_in_flight
        self.busy_contexts = _busy_contexts(config)
        self._num_admitted = 0
        self._nothing_to_admit = True
        self._unregistered: dict[Request, None] = {}

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    def add_request(self, request: Request) -> None:
        """Queue a request; behind a head that cannot be admitted it changes nothing but an adaptive threshold."""
        config = self.config
        is_behind = self.waiting and config.scheduling_policy == "fcfs"
        if not is_behind or config.long_prefill_token_threshold_adaptive:
            self._nothing_to_admit = False
        self.waiting.add(request)

    # -- many passes at once ---------------------------------------------------------------------------------------

    def num_steady_passes(self, step: int) -> int:
        """How many passes from `step` on are certain to run today's decodes and nobody new; 0 if that is not known."""
        decodes = self.decodes
        if self.walks_windows or self.settling or decodes.count > self._token_budget:
            return 0
        if self.prefills:
            return 0 if self._has_windows else self._num_filling_passes(step)
        if not (decodes.count and self._nothing_to_admit):
            return 0
        limit = decodes.next_end - step + 1
        if self.waiting:
            limit = self.num_passes_to_release(step, limit)
        limit = min(limit, self.passings.next_begin - step + 1)
        return decodes.passes_within(step, limit, self.kv.pool.num_free // self.kv.num_groups)

    def _num_filling_passes(self, step: int) -> int:
        """Passes in which a prompt, alone and not to be finished, takes all that decodes leave of the budget."""
        request = next(iter(self.prefills))
        num_tokens = self._token_budget - self.decodes.count
        if num_tokens < 2 or num_tokens > self._longest_chunk() or len(self.prefills) > 1:
            return 0
        if next(reversed(self.running)) is not request or (
            request in self._unregistered and len(self._unregistered) > 1
        ):
            return 0
        computed = request.num_computed_tokens
        count = (request.num_prompt_tokens + request.num_sampled_tokens - computed - 1) // num_tokens
        count = min(count, self.decodes.next_end - step + 1)
        while count > 0 and self.num_steady_blocks(step, count) > self.kv.pool.num_free:
            count -= 1
        return count

    def num_steady_blocks(self, step: int, num_passes: int) -> int:
        """Blocks that steady passes take."""
        blocks = self.decodes.blocks_crossed(step, num_passes) * self.kv.num_groups
        for request in self.prefills:
            num_tokens = num_passes * self.num_filling_tokens
            blocks += self.kv.new_blocks(request.num_computed_tokens, num_tokens)
        return blocks

    @property
    def num_filling_tokens(self) -> int:
        """Prompt tokens in each of today's steady passes."""
        return self._token_budget - self.decodes.count if self.prefills else 0

    def steady_shape(self, step: int) -> StepShape:
        """The work of a steady pass."""
        num_decodes = self.decodes.count
        chunks = tuple((self.num_filling_tokens, request.num_computed_tokens) for request in self.prefills)
        return StepShape(num_decodes, self.decodes.context_sum(step), chunks, num_decodes)

    def num_passes_to_release(self, step: int, limit: int) -> int:
        """How many passes from `step` on come before blocks are released, at most `limit`."""
        return min(limit, next(iter(self.ended)) + self._depth - step) if self.ended else limit

    def leap(self, step: int, num_passes: int) -> None:
        """Do that many steady passes."""
        blocks = self.num_steady_blocks(step, num_passes)
        if blocks:
            self.kv.pool.take(blocks)
        for request in self.prefills:
            request.num_chunk_tokens = self.num_filling_tokens
            request.num_computed_tokens += num_passes * request.num_chunk_tokens
            request.chunk_pass = step + num_passes - 1
        if self._has_windows:
            self.kv.free_passed_blocks(self.passings.blocks_passed(step, num_passes))
            self.passings.advance(step + num_passes - 1)
        if step + num_passes > self.decodes.next_end:
            self._end_decodes()

    # -- one pass --------------------------------------------------------------------------------------------------

    def schedule(self, step: int) -> Batch:
        """Running requests first, in order of admission; then the waiting, unless someone had to be preempted."""
        batch = Batch(step, self._token_budget, self._longest_chunk())
        if not self._grant_all_running(batch):
            scarcity.schedule_running(self, batch)
        if self.waiting and not batch.preempted:
            if batch.budget > 0:
                self._admit_waiting(batch)
            elif not batch.chunks:
                self._nothing_to_admit = True
        batch.close(self.decodes.context_sum(step))
        self._advance(batch)
        return batch

    def _longest_chunk(self) -> int:
        """The most tokens that one request may get: the long-prefill threshold, where it applies."""
        config = self.config
        threshold = config.long_prefill_token_threshold
        if not threshold and not config.long_prefill_token_threshold_adaptive:
            return config.token_budget
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1 and config.rules.lone_request_ignores_threshold:
            threshold = 0
        elif config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, config.max_num_batched_tokens // max(1, num_requests))
        return threshold or config.token_budget

    def _grant_all_running(self, batch: Batch) -> bool:
        """Give every running request what it wants; False, with nothing done, where tokens or blocks may not suffice."""
        kv, num_decodes = self.kv, self.decodes.count
        budget = batch.budget - num_decodes
        if budget < 0 or self.walks_windows:
            return False
        blocks = self.decodes.crossings[batch.step % self._block_size] * kv.num_groups
        chunks = []
        for request in self.prefills:
            wanted = request.num_prompt_tokens + request.num_sampled_tokens - request.num_computed_tokens
            wanted = min(wanted, batch.longest_chunk)
            if wanted > budget:
                if len(self.prefills) > 1 or next(reversed(self.running)) is not request:
                    return False
                wanted = budget
            if wanted:
                new = kv.new_blocks(request.num_computed_tokens, wanted)
                chunks.append((request, wanted, new))
                budget -= wanted
                blocks += new
        if blocks > kv.pool.num_free:
            return False
        if blocks:
            kv.pool.take(blocks)
        if self._has_windows:
            self._free_passed_blocks(batch.step, (request for request, *_ in chunks))
        batch.budget = budget
        batch.num_decodes = num_decodes
        for request, wanted, new in chunks:
            self.add_chunk(batch, request, wanted, new)
        return True

    def _free_passed_blocks(self, step: int, computing: Iterable[Request]) -> None:
        """Give back what windows have passed before this pass: of prompts, of decodes not yet in steady progress, of all others."""
        for request in (*computing, *self.settling):
            self.kv.free_passed_windows(request, num_processed_tokens(request, step, self.num_collected))
        self.kv.free_passed_blocks(self.passings.blocks_passed(step, 1))

    def add_chunk(self, batch: Batch, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        """Schedule prompt tokens that have their blocks; full blocks can be found from now on."""
        before = request.num_computed_tokens
        after = request.num_computed_tokens = before + num_tokens
        request.chunk_pass = batch.step
        request.num_chunk_tokens = num_tokens
        if self.walks_windows or (request in self._unregistered and len(self._unregistered) > 1):
            self._register_running(batch.step, request.serial)
            self.kv.keep_full_blocks(request, after)
        samples = after == request.num_prompt_tokens + request.num_sampled_tokens
        batch.chunks.append(Chunk(request, num_tokens, before, num_new_blocks, samples))

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit_waiting(self, batch: Batch) -> None:
        """Admit from the head until one cannot be; those whose preempted tokens still come are passed over."""
        passed_over: list[Request] = []
        while self.waiting and batch.budget > 0 and len(self.running) < self._max_running:
            request = self.waiting[0]
            if request.sampled_pass >= self.num_collected:
                passed_over.append(self.waiting.pop_first())
            elif not self._admit(request, batch):
                break
        for request in reversed(passed_over):
            self.waiting.put_back(request)
        self._nothing_to_admit = not (self.waiting and self._may_admit_soon(batch, passed_over))

    def _may_admit_soon(self, batch: Batch, passed_over: list[Request]) -> bool:
        """Whether the head may be admitted next time though nothing ends: budget, tokens or contents may come free.

        Without the admission gate it may even help that part of what the head would hit is evicted.
        """
        head = self.waiting[0]
        if self._has_windows and len(self.running) < self._max_running:
            return True
        if self._is_out_of_reach(head):
            return bool(passed_over)
        needs_only_its_chunk = not self.config.scheduler_reserve_full_isl and head.keyed is not None
        return bool(batch.chunks or passed_over or self._unregistered or needs_only_its_chunk)

    def _is_out_of_reach(self, request: Request) -> bool:
        """Whether the admission gate holds a request back whatever of it is found in the cache: before looking."""
        return self.config.scheduler_reserve_full_isl and not self._passes_gate(request, best_hit(request))

    def _passes_gate(self, request: Request, hit: PrefixHit) -> bool:
        num_known_tokens = request.num_prompt_tokens + request.num_sampled_tokens
        return self.kv.can_admit(num_known_tokens, hit, self._watermark_blocks if self.running else 0)

    def _admit(self, request: Request, batch: Batch) -> bool:
        config, hit = self.config, NO_HIT
        if self._is_out_of_reach(request):
            return False
        if request.keyed is not None:
            if self._unregistered:
                self._register_running(batch.step)
            hit = self.kv.find_prefix(request)
            if config.scheduler_reserve_full_isl and not self._passes_gate(request, hit):
                return False
        num_hit_tokens = hit.num_blocks * self._block_size
        num_tokens = request.num_prompt_tokens + request.num_sampled_tokens - num_hit_tokens
        num_tokens = min(num_tokens, batch.longest_chunk)
        if num_tokens > batch.budget:
            if not config.enable_chunked_prefill:
                return False
            num_tokens = batch.budget
        reserve = self._watermark_blocks if self.running else 0
        num_new_blocks = self.kv.admit(request, hit, num_hit_tokens + num_tokens, reserve)
        if num_new_blocks is None:
            return False
        self.waiting.pop_first()
        self._start(request, hit.num_blocks)
        batch.admitted.append(request)
        batch.budget -= num_tokens
        self.add_chunk(batch, request, num_tokens, num_new_blocks)
        return True

    def _start(self, request: Request, num_hit_blocks: int) -> None:
        request.status = RequestStatus.PREFILLING
        request.serial = self._num_admitted
        self._num_admitted += 1
        self.running[request] = self.prefills[request] = None
        num_hit_tokens = request.num_computed_tokens = num_hit_blocks * self._block_size
        if request.num_shared_blocks > num_hit_blocks:
            self._unregistered[request] = None
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_hit_tokens
            self.prefix_cache_queries += request.num_prompt_tokens
            self.prefix_cache_hits += num_hit_tokens

    def _register_running(self, step: int, before: int | None = None) -> None:
        """Make findable what running requests have filled, before anyone looks for it or fills the same.

        Those admitted before number `before` have been scheduled in pass `step` already; all where it is None.
        """
        for request in list(self._unregistered):
            if request.status is RequestStatus.PREFILLING:
                self.kv.keep_full_blocks(request, request.num_computed_tokens)
            else:
                self.keep_decoded_blocks(request, step, is_scheduled=before is None or request.serial < before)
            if self.kv.num_registered_blocks(request) >= request.num_shared_blocks:
                del self._unregistered[request]

    def keep_decoded_blocks(self, request: Request, step: int, *, is_scheduled: bool) -> None:
        """Make what a request has decoded findable, up to pass `step`, which has scheduled it or not yet."""
        if request.keyed is not None and request.status is not RequestStatus.PREFILLING:
            runs = is_scheduled and request.starved_pass != step <= request.last_pass
            scheduled_to = step - request.epoch if runs else 0
            self.kv.keep_full_blocks(request, num_hashed_tokens(request, step, self.num_collected, scheduled_to))

    # -- after the pass --------------------------------------------------------------------------------------------

    def _advance(self, batch: Batch) -> None:
        """What the pass changes for the next: decodes that end, prefills that become decodes."""
        if self._has_windows:
            self.passings.advance(batch.step)
        if self.decodes.next_end == batch.step:
            self._end_decodes()
        for request in batch.starved:
            self.decodes.enter(request)
        for chunk in batch.chunks:
            if chunk.samples:
                self._finish_prefill(chunk.request, batch.step)
        ended = self.ended.get(batch.step)
        if ended and len(ended) > 1:
            ended.sort(key=_serial)
        if self.settling:
            self._settle(batch.step)

    def _settle(self, step: int) -> None:
        """Decodes whose first token, or the first after they starved, has come back are in steady progress."""
        for request in list(self.settling):
            if step >= max(request.first_decode_pass, request.starved_pass + 1) + self._depth - 1:
                del self.settling[request]
                self.passings.enter(request, step)

    def unsettle(self, step: int) -> None:
        """Before a walk in pass `step`: look at each decode's windows by itself."""
        for request in self.running:
            if request.status is RequestStatus.DECODING and request not in self.settling:
                self.passings.leave(request, step - 1)
                self.settling[request] = None

    def _end_decodes(self) -> None:
        """What becomes of those that sample their last token in pass `next_end`."""
        step = self.decodes.next_end
        ending = self.decodes.pop_next_end()
        if not ending:
            return
        self._nothing_to_admit = not self.waiting
        for request in ending:
            self.history.ends(request, step)
            request.status = RequestStatus.ENDED
            request.num_sampled_tokens = request.max_tokens
            request.sampled_pass = step
            if self._has_windows:
                self._leave_windows(request, step)
        if len(ending) > 1:
            ending.sort(key=_serial)
        self.ended[step] = ending

    def _leave_windows(self, request: Request, step: int) -> None:
        """The request has decoded for the last time in pass `step`."""
        if request in self.settling:
            del self.settling[request]
        elif not self.walks_windows:
            self.passings.leave(request, step)

    def _finish_prefill(self, request: Request, step: int) -> None:
        """The request samples a token in this pass and decodes from the next on, unless that was its last."""
        del self.prefills[request]
        if request.num_sampled_tokens == 0:
            request.first_token_pass = step
        else:
            self.history.resumes(request, step)
        num_prompt_tokens = request.num_prompt_tokens
        epoch = request.epoch = step - num_prompt_tokens - request.num_sampled_tokens
        request.first_decode_pass = request.stretch_pass = step + 1
        request.last_pass = epoch + num_prompt_tokens + request.max_tokens - 1
        request.num_sampled_tokens += 1
        if request.last_pass == step:
            request.status = RequestStatus.ENDED
            request.sampled_pass = step
            self.ended.setdefault(step, []).append(request)
        else:
            request.status = RequestStatus.DECODING
            self.decodes.enter(request)
            if self._has_windows and not self.walks_windows:
                self.settling[request] = None

    # -- when tokens come back -------------------------------------------------------------------------------------

    def collect(self, step: int) -> list[Request]:
        """Take in batch `step`: the requests that it finishes, their blocks released."""
        self.num_collected = step + 1
        if step not in self.ended:
            return NOBODY
        finished = self.ended.pop(step)
        for request in finished:
            if request.status is RequestStatus.ENDED:
                del self.running[request]
                num_computed = request.num_prompt_tokens + request.max_tokens - 1
                self.kv.release(request, num_computed, num_computed)
                self._unregistered.pop(request, None)
            else:
                self.waiting.remove(request)
            request.status = RequestStatus.FINISHED
        self._nothing_to_admit = not self.waiting
        return finished

    # -- when not everyone gets what it wants ------------------------------------------------------------------------

    def starve(self, request: Request, batch: Batch) -> None:
        """A decode that gets nothing in this pass: all that it would have done moves one pass on."""
        self.decodes.leave(request)
        self.history.starves(request, batch.step)
        request.starved_pass = batch.step
        request.epoch += 1
        request.last_pass += 1
        batch.starved.append(request)

    def preempt(self, request: Request, batch: Batch, num_granted: int) -> None:
        """Recompute preemption: blocks are released, what was sampled is kept; tokens in flight still come."""
        step = batch.step
        if self._has_windows and self.config.enable_prefix_caching and not self.walks_windows:
            raise UnexpectedPreemptionError
        self.settling.pop(request, None)
        computed = num_computed_tokens(request, step)
        scheduled_to = computed + num_granted if num_granted else 0
        hashed = num_hashed_tokens(request, step, self.num_collected, scheduled_to)
        if request.status is RequestStatus.DECODING:
            self.decodes.leave(request)
            self.history.is_preempted(request, step)
            request.num_sampled_tokens = computed - request.num_prompt_tokens + 1
        elif request.status is RequestStatus.PREFILLING:
            del self.prefills[request]
        del self.running[request]
        self._unregistered.pop(request, None)
        self.kv.key_all_blocks(request)
        self.kv.release(request, computed + num_granted, hashed)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.put_back(request)
        self._nothing_to_admit = False
        batch.preempted.append(request)


def _busy_contexts(config: SchedulerConfig) -> frozenset[int]:
    """Contexts, modulo the block size, at which a decode begins a block, fills one, or a window passes one.

    A block that fills is found from the pass that feeds its last token, under async scheduling up to two passes later.
    """
    lag = config.num_batches_in_flight - 1
    passing = {group.window + lag for group in config.kv_groups if group.window is not None}
    return frozenset(context % config.block_size for context in {0, 1, 2} | passing)


def _serial(request: Request) -> int:
    return request.serial
