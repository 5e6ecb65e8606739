"""Admission: moves waiting requests to the running ones while tokens, places and blocks last."""

from typing import NamedTuple

from sim.engine.batch import Batch
from sim.engine.block_hashing import BlockHashing
from sim.engine.kv_cache_manager import NO_HIT, PrefixHit, best_hit
from sim.engine.request import Request
from sim.engine.scheduler_state import SchedulerState
from sim.engine.unlimited import UNLIMITED


class Shortage(NamedTuple):
    """The last request that did not pass the admission gate, for want of free blocks, and when that was.

    It needs at least `num_blocks` free ones; `num_registered` blocks had been registered and `num_admitted` requests
    admitted at that time. None: no request was refused yet.
    """

    request: Request | None
    num_blocks: int
    num_registered: int
    num_admitted: int


class Admission:
    """Admits requests from the head of the queue until one cannot be admitted."""

    def __init__(self, state: SchedulerState, block_hashing: BlockHashing) -> None:
        config = state.config
        self._state = state
        self._block_hashing = block_hashing
        self._kv = state.kv
        self._block_size = config.block_size
        self._max_running = config.max_running
        self._is_gated = config.engine.scheduler_reserve_full_isl
        self._watermark_blocks = config.watermark_blocks
        self._has_windows = config.has_windows
        self._may_split_prompts = config.engine.enable_chunked_prefill
        self._skips_long_prompts = (
            config.engine.rules.skips_unchunked_prompts and not config.engine.enable_chunked_prefill
        )
        self._skipped: list[Request] = []
        self._shortage = Shortage(None, 0, 0, 0)
        self._any_arrival_counts = (
            state.policy.may_overtake or config.engine.long_prefill_token_threshold_adaptive
        )  # otherwise an arrival behind a head that cannot be admitted changes nothing

    def add(self, request: Request) -> None:
        """Put a request into the queue."""
        waiting = self._state.waiting
        if self._any_arrival_counts or not waiting:
            self._state.admits_nobody = False
        waiting.add(request)

    def admit_waiting(self, batch: Batch) -> None:
        """Admit into `batch` while tokens, places and blocks last.

        vLLM passes over requests with tokens in flight from before a preemption. That cannot happen here: no request is
        admitted in a pass that preempts, and by the next pass those tokens have come back.
        """
        state, waiting = self._state, self._state.waiting
        if batch.budget == 0:
            state.admits_nobody = state.admits_nobody or not batch.chunks
            return
        while waiting and batch.budget > 0 and len(state.running) < self._max_running:
            if not (self._admit(waiting[0], batch) or self._skips(waiting[0], batch)):
                break
        if self._skipped:
            waiting.put_back_skipped(self._skipped)
            self._skipped = []
        state.admits_nobody = not (waiting and (self._skips_long_prompts or self._may_admit_soon(waiting[0], batch)))

    def _skips(self, head: Request, batch: Batch) -> bool:
        """Whether the head, which cannot be admitted, is set aside so that the next request is tried (before vLLM 0.12)."""
        if not (self._skips_long_prompts and self._is_too_long(head, batch)):
            return False
        self._skipped.append(self._state.waiting.pop_first())
        return True

    def _is_too_long(self, request: Request, batch: Batch) -> bool:
        """Whether a prompt that must not be split needs more tokens than are left of the budget."""
        num_computed = request.resumes_at
        if request.keyed is not None and not num_computed:
            num_computed = self._kv.find_prefix(request).num_blocks * self._block_size
        return min(request.num_tokens - num_computed, batch.longest_chunk) > batch.budget

    def _may_admit_soon(self, head: Request, batch: Batch) -> bool:
        """Whether the next pass may admit the head though no request ends before it.

        It may if this pass spent tokens on prompts, or if blocks are about to be registered that the head could hit.
        Without the admission gate even an eviction can help: hit blocks that are free count among the blocks needed.
        """
        self._state.num_blocks_to_admit = UNLIMITED
        if self._has_windows and len(self._state.running) < self._max_running:
            return not self._waits_for_blocks(head, batch)
        if not self._passes_gate(head, best_hit(head)):
            return False
        needs_only_its_chunk = not self._is_gated and head.keyed is not None
        return bool(batch.chunks or self._state.unhashed or needs_only_its_chunk)

    def _waits_for_blocks(self, head: Request, batch: Batch) -> bool:
        """Whether the head only lacks free blocks, which windows may give back; the number needed is noted in the state."""
        if batch.chunks or not self._lacks_blocks(head):
            return False
        self._state.num_blocks_to_admit = self._shortage.num_blocks
        return True

    def _admit(self, request: Request, batch: Batch) -> bool:
        if self._lacks_blocks(request):
            return False
        hit = NO_HIT if request.resumes_at else best_hit(request)
        if not self._passes_gate(request, hit):
            return False
        if request.keyed is not None and not request.resumes_at:
            self._block_hashing.catch_up(batch.step)
            hit = self._kv.find_prefix(request)
            if not self._passes_gate(request, hit):
                return False
        num_computed = request.resumes_at or hit.num_blocks * self._block_size
        num_tokens = request.num_tokens - num_computed
        num_tokens = min(num_tokens, batch.longest_chunk)
        if num_tokens > batch.budget:
            if not self._may_split_prompts:
                return False
            num_tokens = batch.budget
        num_new_blocks = self._kv.admit(request, hit, num_computed + num_tokens, self._reserved_blocks)
        if num_new_blocks is None:
            return False
        self._state.waiting.pop_first()
        self._state.start(request, hit.num_blocks)
        batch.admitted.append(request)
        batch.budget -= num_tokens
        self._block_hashing.add_chunk(batch, request, num_tokens, num_new_blocks)
        return True

    def _passes_gate(self, request: Request, hit: PrefixHit) -> bool:
        """The admission gate, if it is on: whether all tokens known of a request fit into free blocks now.

        If they do not, the shortage is noted, so that the request is not tried again while nothing has changed.
        """
        if not self._is_gated or self._kv.can_admit(request.num_tokens, hit, self._reserved_blocks):
            return True
        num_blocks = self._kv.num_blocks_to_admit(request.num_tokens, hit, self._reserved_blocks)
        self._shortage = Shortage(request, num_blocks, self._kv.num_registered, self._state.num_admitted)
        return False

    def _lacks_blocks(self, request: Request) -> bool:
        """Whether the noted shortage still holds for this request: nothing that it could hit was registered or taken since."""
        state, shortage = self._state, self._shortage
        return (
            shortage.request is request
            and self._kv.pool.num_free < shortage.num_blocks
            and shortage.num_registered == self._kv.num_registered
            and shortage.num_admitted == state.num_admitted
            and bool(state.running)
            and not state.unhashed
        )

    @property
    def _reserved_blocks(self) -> int:
        """Blocks that an admission must leave free: the watermark, unless no request is running."""
        return self._watermark_blocks if self._state.running else 0
