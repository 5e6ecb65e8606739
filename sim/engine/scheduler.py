"""One scheduling pass: who runs how many tokens in the next step. Knows no clock.

Mirrors vLLM's v1/core/sched/scheduler.py and async_scheduler.py, from 0.8.5 to 0.33 by `config.rules`, without touching
the decodes. Deliberate differences: every request stops at its output length (no EOS), and speculation, LoRA, encoders
and KV connectors are not modelled. Passes are numbered; batch `s` is what pass `s` launched, and it is collected when its
tokens have come back.

Invariants: `running` is in order of admission and holds three kinds: decodes (counted in `decodes`), prefills (in
`prefills`) and those that only wait for their last token (in `ended`, by the batch that brings it).
"""

from sim.engine import preemption
from sim.engine.admission import Admission
from sim.engine.batch import Batch, Chunk
from sim.engine.block_hashing import BlockHashing
from sim.engine.config import SchedulerConfig
from sim.engine.decode_history import DecodeHistory
from sim.engine.decodes import Decodes
from sim.engine.kv_cache_manager import KVCacheManager
from sim.engine.leap_planner import LeapPlanner
from sim.engine.progress import num_computed_tokens, num_hashed_tokens
from sim.engine.queues import waiting_queue
from sim.engine.request import Request, RequestStatus, admission_order
from sim.engine.windows import Windows


class UnexpectedPreemptionError(Exception):
    """A scheduler that counted on none has to preempt a request, whose blocks behind its windows it has not kept apart."""


class Scheduler:
    """The waiting queue, the running requests and their KV blocks.

    With prefix caching, a preempted request may ask for what its windows have passed. If preemption is expected, all its
    blocks get keys and windows are walked request by request; if not, they are counted (`windows`), but for blocks that
    the trace shares, and a preemption raises UnexpectedPreemptionError.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int = 0, *, expects_preemption: bool = True) -> None:
        self.config = config
        self.wastes_a_decode = config.async_scheduling and not config.rules.stops_at_last_token
        caches = config.enable_prefix_caching and expects_preemption
        self.walks_windows = config.has_windows and (caches or self.wastes_a_decode)
        self.kv = KVCacheManager(config, num_keys, keys_all=self.walks_windows)
        self.waiting = waiting_queue(config.scheduling_policy, orders_ties=config.rules.orders_ties_by_id)
        self.running: dict[Request, None] = {}
        self.prefills: dict[Request, None] = {}
        self.decodes = Decodes(config.block_size)
        self.ended: dict[int, list[Request]] = {}
        self.num_collected = 0
        self.windows = Windows(config, self.kv) if config.has_windows and not self.walks_windows else None
        self.history = DecodeHistory()
        self.admission = Admission(self)
        self.block_hashing = BlockHashing(self)
        self.leap_planner = LeapPlanner(self)
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._block_size = config.block_size
        self._token_budget = config.token_budget
        self._num_admitted = 0
        self.busy_contexts = preemption.busy_contexts(config)

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    # -- one pass --------------------------------------------------------------------------------------------------

    def schedule(self, step: int) -> Batch:
        """Running requests first, in order of admission; then the waiting, unless someone had to be preempted."""
        batch = Batch(step, self._token_budget, self.longest_chunk())
        if self.windows:
            self.block_hashing.catch_up(step, before=0)  # what they pass stays findable
        if not self._grant_all_running(batch):
            preemption.schedule_running(self, batch)
        if self.waiting and not batch.preempted:
            self.admission.admit_waiting(batch)
        batch.close(self.decodes.context_sum(step))
        self._advance(batch)
        return batch

    def longest_chunk(self) -> int:
        """The most tokens that one request may get: the long-prefill threshold, where it applies."""
        config = self.config
        threshold = config.long_prefill_token_threshold
        if not threshold:
            return config.token_budget
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1 and config.rules.lone_request_ignores_threshold:
            return config.token_budget
        if config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // max(1, num_requests))
        return threshold

    def _grant_all_running(self, batch: Batch) -> bool:
        """Give every running request what it wants; False, with nothing done, where tokens or blocks may not suffice."""
        kv, num_decodes = self.kv, self.decodes.count
        budget = batch.budget - num_decodes
        if budget < 0 or self.walks_windows or (self.wastes_a_decode and self.ended):
            return False
        blocks = self.decodes.block_boundaries[batch.step % self._block_size] * kv.num_groups
        chunks = []
        for request in self.prefills:
            wanted = request.num_tokens - request.num_computed_tokens
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
        if self.windows:
            self.windows.free_passed(batch.step, self.num_collected, (request for request, *_ in chunks))
        batch.budget = budget
        batch.num_decodes = num_decodes
        for request, wanted, new in chunks:
            self.add_chunk(batch, request, wanted, new)
        return True

    def add_chunk(self, batch: Batch, request: Request, num_tokens: int, num_new_blocks: int) -> None:
        """Schedule prompt tokens that have their blocks; full blocks can be found from now on."""
        before = request.num_computed_tokens
        after = request.num_computed_tokens = before + num_tokens
        request.chunk_pass = batch.step
        request.num_chunk_tokens = num_tokens
        self.block_hashing.keep_chunk(request, batch.step, after)
        samples = after == request.num_tokens
        batch.chunks.append(Chunk(request, num_tokens, before, num_new_blocks, samples))

    def start(self, request: Request, num_hit_blocks: int) -> None:
        """A waiting request has got its blocks. What a ghost counts as computed is no hit."""
        request.status = RequestStatus.PREFILLING
        request.serial = self._num_admitted
        self._num_admitted += 1
        self.running[request] = self.prefills[request] = None
        num_hit_tokens = num_hit_blocks * self._block_size
        request.num_computed_tokens = request.resumes_at or num_hit_tokens
        if request.num_shared_blocks > num_hit_blocks:
            self.block_hashing.pending[request] = None
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_hit_tokens
            self.prefix_cache_queries += request.num_prompt_tokens
            self.prefix_cache_hits += num_hit_tokens

    # -- after the pass --------------------------------------------------------------------------------------------

    def _advance(self, batch: Batch) -> None:
        """What the pass changes for the next: decodes that end, prefills that become decodes."""
        if self.decodes.ends.next_pass == batch.step:
            self.end_decodes()
        for request in batch.starved:
            self.decodes.enter(request)
        for chunk in batch.chunks:
            if chunk.samples:
                self._finish_prefill(chunk.request, batch.step)
        ended = self.ended.get(batch.step)
        if ended and len(ended) > 1:
            ended.sort(key=admission_order)
        if self.windows:
            self.windows.advance(batch.step)

    def end_decodes(self) -> None:
        """What becomes of those that sample their last token in the next pass in which anybody does."""
        step = self.decodes.ends.next_pass
        ending = self.decodes.pop_next_end()
        if not ending:
            return
        self.admission.capacity_freed()
        for request in ending:
            self.history.ends(request, step)
            request.status = RequestStatus.ENDED
            request.num_sampled_tokens = request.max_tokens
            request.sampled_pass = step
            if self.windows:
                self.windows.leave(request, step)
        if len(ending) > 1:
            ending.sort(key=admission_order)
        self.ended[step] = ending

    def _finish_prefill(self, request: Request, step: int) -> None:
        """The request samples a token in this pass and decodes from the next on, unless that was its last."""
        del self.prefills[request]
        if request.num_sampled_tokens == 0:
            request.first_token_pass = step
        else:
            self.history.resumes(request, step)
        request.epoch = step - request.num_tokens
        request.first_decode_pass = request.stretch_pass = step + 1
        request.last_pass = request.epoch + request.num_prompt_tokens + request.max_tokens - 1
        request.num_sampled_tokens += 1
        if request.last_pass == step:
            request.status = RequestStatus.ENDED
            request.sampled_pass = step
            self.ended.setdefault(step, []).append(request)
        else:
            request.status = RequestStatus.DECODING
            self.decodes.enter(request)
            if self.windows:
                self.windows.enter(request)

    # -- when tokens come back -------------------------------------------------------------------------------------

    def release_ended(self, batch: int) -> list[Request]:
        """A batch that brings last tokens has come back: the requests that it finishes, their blocks released."""
        finished = self.ended.pop(batch)
        preempted = []
        for request in finished:
            if request.status is RequestStatus.ENDED:
                del self.running[request]
                num_computed = request.num_prompt_tokens + request.max_tokens - 1
                self.kv.release(request, num_computed + (request.wasted_pass > request.last_pass), num_computed)
                self.block_hashing.pending.pop(request, None)
            else:
                preempted.append(request)
            request.status = RequestStatus.FINISHED
        if preempted:
            self.waiting.remove_all(preempted)
        self.admission.capacity_freed()
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

    def preempt(self, request: Request, batch: Batch, num_granted: int, *, resumes_at: int = 0) -> None:
        """Recompute preemption: blocks are released, what was sampled is kept; tokens in flight still come.

        The request counts as having computed `resumes_at` tokens all the same.
        """
        step = batch.step
        if self.config.has_windows and self.config.enable_prefix_caching and not self.walks_windows:
            raise UnexpectedPreemptionError
        if self.windows:
            self.windows.is_preempted(request)
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
        self.block_hashing.pending.pop(request, None)
        self.kv.key_all_blocks(request)
        self.kv.release(request, computed + num_granted, hashed)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.resumes_at = resumes_at
        request.num_preemptions += 1
        self.waiting.put_back(request)
        self.admission.is_settled = False
        batch.preempted.append(request)
