"""The waiting and the running requests with their blocks, and the transitions of a request from one state to the next.

Passes are numbered; batch `s` is what pass `s` launched, and it is collected when its tokens have come back. This file
makes no decisions: admission, preemption and the scheduler do, and call the transitions.
"""

from sim.engine.common_readers import common_readers
from sim.engine.config import SchedulerConfig
from sim.engine.decode_history import DecodeHistory
from sim.engine.decodes import Decodes
from sim.engine.kv_cache_manager import KVCacheManager
from sim.engine.progress import num_computed_tokens, num_hashed_tokens, num_scheduled_to
from sim.engine.request import Request, RequestStatus, admission_order
from sim.engine.scheduling_policy import scheduling_policy
from sim.engine.unlimited import UNLIMITED
from sim.engine.windows import Windows


class SchedulerState:
    """The waiting queue, the running requests and their KV blocks.

    Invariants:
    - `running` is in order of admission. It holds decodes (counted in `decodes`), prefills (in `prefills`) and requests
      that only wait for their last token (in `ended`, by the number of the batch that brings it).
    - `unhashed` are running requests with blocks that other requests may ask for and that are not registered yet, or
      that will have such blocks.
    - While `admits_nobody` is true, no pass can admit a request until one ends, arrives, is preempted or aborted, or
      until attention windows have given back so many blocks that `num_blocks_to_admit` are free.
    - `num_collected` batches have come back.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int = 0) -> None:
        self.config = config
        self.wastes_a_decode = config.engine.async_scheduling and not config.engine.rules.stops_at_last_token
        self.kv = KVCacheManager(config, num_keys)
        self.policy = scheduling_policy(config.engine.scheduling_policy, config.engine.rules)
        self.waiting = self.policy.make_queue()
        self.running: dict[Request, None] = {}
        self.prefills: dict[Request, None] = {}
        self.decodes = Decodes(config.block_size, common_readers(config))
        self.ended: dict[int, list[Request]] = {}
        self.unhashed: dict[Request, None] = {}
        self.windows = Windows(config, self.kv) if config.has_windows else None
        self.history = DecodeHistory()
        self.admits_nobody = True
        self.num_blocks_to_admit = UNLIMITED
        self.num_collected = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_admitted = 0

    @property
    def has_requests(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def longest_chunk(self) -> int:
        """The most tokens that one request may get in a pass now."""
        return self.config.longest_chunk(len(self.running) + len(self.waiting))

    # -- from waiting to decoding ----------------------------------------------------------------------------------

    def start(self, request: Request, num_hit_blocks: int) -> None:
        """A waiting request, taken out of the queue, begins its prefill: `num_hit_blocks` of its blocks were cached.

        Tokens at which a ghost resumes (`resumes_at`) are not counted as a hit of the prefix cache.
        """
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
        """A prefill computes `num_tokens` in each of `num_passes` passes, the last of which is `last_pass`."""
        request.num_computed_tokens += num_passes * num_tokens
        request.num_chunk_tokens = num_tokens
        request.chunk_pass = last_pass

    def finish_prefill(self, request: Request, step: int) -> None:
        """A prefill samples a token in pass `step`; the request decodes from the next pass on, unless that was its last token."""
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
        """The next pass in which any decode samples its last token has been done: those decodes end."""
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
        """A batch with last tokens has come back: release the blocks of the requests that it finishes, and return these.

        A request that was preempted with its last token in flight is among them; it leaves the queue.
        """
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
        """Remove an unfinished request from wherever it is, and release its blocks.

        Where `is_scheduled`, pass `step` has been done with it; otherwise pass `step` is the next.
        """
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
        """A place among the running requests, blocks, or tokens of the budget have come free: the next pass may admit."""
        self.admits_nobody = not self.waiting

    # -- when not everyone gets what it wants ----------------------------------------------------------------------

    def starve(self, request: Request, step: int) -> None:
        """A decode gets no token in pass `step`: everything that it would do from here on moves one pass back in time."""
        if self.windows:
            self.windows.falters(request, step)
        self.decodes.leave(request)
        self.history.starves(request, step)
        request.starved_pass = step
        request.epoch += 1
        request.last_pass += 1

    def preempt(self, request: Request, step: int, num_granted: int, *, resumes_at: int = 0) -> None:
        """Preempt a running request in pass `step`, to be recomputed: its blocks are released, its sampled tokens are kept.

        Tokens in flight for it still come back. It had been granted `num_granted` tokens in this pass already; when it
        resumes, `resumes_at` tokens count as computed.
        """
        if self.windows:
            self.windows.is_preempted(request, step)
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
        """Cached contents that were evicted so far."""
        return self.kv.pool.num_evictions

    def num_evictions_within(self, count: int) -> int:
        """How many of the next `count` blocks to be taken hold a cached content, which would be evicted."""
        return self.kv.pool.num_evictions_within(count)
