"""Who waits, who runs and who holds which blocks, and how a request goes from one state to the next.

Passes are numbered; batch `s` is what pass `s` launched, and it is collected when its tokens have come back. Nothing
here decides anything: admission, preemption and the scheduler do, and call the transitions.
"""

import sys

from sim.engine.config import SchedulerConfig
from sim.engine.decode_history import DecodeHistory
from sim.engine.decodes import Decodes
from sim.engine.kv_cache_manager import KVCacheManager
from sim.engine.progress import num_computed_tokens, num_hashed_tokens, num_scheduled_to
from sim.engine.request import Request, RequestStatus, admission_order
from sim.engine.scheduling_policy import scheduling_policy
from sim.engine.windows import Windows


class SchedulerState:
    """The waiting queue, the running requests and their KV blocks.

    Invariants: `running` is in order of admission and holds three kinds: decodes (counted in `decodes`), prefills (in
    `prefills`) and those that only wait for their last token (in `ended`, by the batch that brings it). `unhashed` are
    the running requests with blocks that others may ask for and that cannot be found yet, or will have some. While
    `admits_nobody`, no pass can admit a request until something ends, arrives or is preempted, or until windows have left
    `num_blocks_to_admit` free. `num_collected` batches have come back.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int = 0) -> None:
        self.config = config
        self.wastes_a_decode = config.engine.async_scheduling and not config.engine.rules.stops_at_last_token
        self.kv = KVCacheManager(config, num_keys)
        self.policy = scheduling_policy(config.engine.scheduling_policy, config.engine.rules)
        self.waiting = self.policy.make_queue()
        self.running: dict[Request, None] = {}
        self.prefills: dict[Request, None] = {}
        self.decodes = Decodes(config.block_size)
        self.ended: dict[int, list[Request]] = {}
        self.unhashed: dict[Request, None] = {}
        self.windows = Windows(config, self.kv) if config.has_windows else None
        self.history = DecodeHistory()
        self.admits_nobody = True
        self.num_blocks_to_admit = sys.maxsize
        self.num_collected = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_admitted = 0

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def longest_chunk(self) -> int:
        """The most tokens that one request may get: the long-prefill threshold, where it applies."""
        config = self.config
        threshold = config.engine.long_prefill_token_threshold
        if not threshold:
            return config.token_budget
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1 and config.engine.rules.lone_request_ignores_threshold:
            return config.token_budget
        if config.engine.long_prefill_token_threshold_adaptive:
            return max(threshold, config.engine.max_num_batched_tokens // max(1, num_requests))
        return threshold

    # -- from waiting to decoding ----------------------------------------------------------------------------------

    def start(self, request: Request, num_hit_blocks: int) -> None:
        """A waiting request has got its blocks. What a ghost counts as computed is no hit."""
        request.status = RequestStatus.PREFILLING
        request.serial = self.num_admitted
        self.num_admitted += 1
        self.running[request] = self.prefills[request] = None
        num_hit_tokens = num_hit_blocks * self.config.block_size
        request.num_computed_tokens = request.resumes_at or num_hit_tokens
        if request.num_shared_blocks > num_hit_blocks:
            self.unhashed[request] = None
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_hit_tokens
            self.prefix_cache_queries += request.num_prompt_tokens
            self.prefix_cache_hits += num_hit_tokens

    def compute(self, request: Request, num_tokens: int, num_passes: int, last_pass: int) -> None:
        """A prompt computes so many tokens in each of some passes, up to and in `last_pass`."""
        request.num_computed_tokens += num_passes * num_tokens
        request.num_chunk_tokens = num_tokens
        request.chunk_pass = last_pass

    def finish_prefill(self, request: Request, step: int) -> None:
        """The request samples a token in this pass and decodes from the next on, unless that was its last."""
        del self.prefills[request]
        if request.num_sampled_tokens:
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

    # -- from decoding to the end ----------------------------------------------------------------------------------

    def end_decodes(self) -> None:
        """The decodes that sample their last token in the next pass in which any does have done so."""
        step = self.decodes.ends.next_pass
        ending = self.decodes.pop_next_end()
        if not ending:
            return
        self.capacity_freed()
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

    def release_ended(self, batch: int) -> list[Request]:
        """A batch that brings last tokens has come back: the requests that it finishes, their blocks released."""
        finished = self.ended.pop(batch)
        preempted = []
        for request in finished:
            if request.status is RequestStatus.ENDED:
                del self.running[request]
                num_computed = request.num_prompt_tokens + request.max_tokens - 1
                self.kv.release(request, num_computed + (request.wasted_pass > request.last_pass), num_computed)
                self.unhashed.pop(request, None)
            else:
                preempted.append(request)
            request.status = RequestStatus.FINISHED
        if preempted:
            self.waiting.remove_all(preempted)
        self.capacity_freed()
        return finished

    def abort(self, request: Request, step: int, *, is_scheduled: bool) -> None:
        """A request leaves in pass `step`, which has scheduled it or not yet; its blocks are released, wherever it stands."""
        last_pass = step if is_scheduled else step - 1
        if request.status is RequestStatus.WAITING or request.status is RequestStatus.PREEMPTED:
            self.waiting.remove_all((request,))
        else:
            self._release_aborted(request, step, last_pass)
        ending = self.ended.get(request.sampled_pass, [])
        if request in ending:
            ending.remove(request)
            if not ending:
                del self.ended[request.sampled_pass]
        self.history.is_aborted(request, last_pass, self.num_collected)
        request.status = RequestStatus.FINISHED
        self.capacity_freed()

    def _release_aborted(self, request: Request, step: int, last_pass: int) -> None:
        computed = num_computed_tokens(request, last_pass + 1)
        is_scheduled = last_pass == step and request.status is not RequestStatus.PREFILLING
        scheduled_to = num_scheduled_to(request, step) if is_scheduled else 0
        hashed = num_hashed_tokens(request, step, self.num_collected, scheduled_to)
        if request.status is RequestStatus.DECODING:
            self.decodes.leave(request)
            if self.windows:
                self.windows.leave(request, last_pass)
        elif request.status is RequestStatus.PREFILLING:
            del self.prefills[request]
        elif request.wasted_pass > request.last_pass:
            computed += 1
        del self.running[request]
        self.unhashed.pop(request, None)
        self.kv.release(request, computed, hashed)

    def capacity_freed(self) -> None:
        """A seat, blocks or tokens of the budget have come free."""
        self.admits_nobody = not self.waiting

    # -- when not everyone gets what it wants ----------------------------------------------------------------------

    def starve(self, request: Request, step: int) -> None:
        """A decode gets nothing in this pass: all that it would have done moves one pass on."""
        self.decodes.leave(request)
        self.history.starves(request, step)
        request.starved_pass = step
        request.epoch += 1
        request.last_pass += 1

    def preempt(self, request: Request, step: int, num_granted: int, *, resumes_at: int = 0) -> None:
        """Recompute preemption: blocks are released, what was sampled is kept; tokens in flight still come.

        The request had been granted `num_granted` tokens in this pass, and counts as having computed `resumes_at`.
        """
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
        self.unhashed.pop(request, None)
        self.kv.key_all_blocks(request, hashed)
        self.kv.release(request, computed + num_granted, hashed)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.resumes_at = resumes_at
        request.num_preemptions += 1
        self.waiting.put_back(request)
        self.admits_nobody = False

    # -- facts for records and logs --------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_free_blocks(self) -> int:
        return self.kv.pool.num_free

    @property
    def num_evictions(self) -> int:
        """Contents lost so far."""
        return self.kv.pool.num_evictions

    def num_evictions_within(self, count: int) -> int:
        """How many of the next `count` blocks would lose a content."""
        return self.kv.pool.num_evictions_within(count)
