"""Which of the waiting requests join in a pass, and for which KV is loaded from elsewhere."""

from enum import Enum

from sim.engine.kv_cache_manager import NO_HIT, PrefixHit
from sim.engine.queues import WaitingQueue
from sim.engine.request import Request
from sim.engine.unlimited import UNLIMITED
from sim.engine.walking.batch import Batch
from sim.engine.walking.connector import Connector
from sim.engine.walking.progress import Progress
from sim.engine.walking.running import short_of_the_end
from sim.engine.walking.state import State
from sim.errors import EngineCrashError


class Outcome(Enum):
    """What an attempt at admission comes to."""

    ADMITTED = "admitted"
    LOADS = "loads"
    PASSED_OVER = "passed over"
    SKIPPED = "skipped"
    STOPS = "stops"


class Admission:
    """Admits from the heads of the queues until one cannot be; those that wait for something of their own are passed over."""

    def __init__(self, state: State) -> None:
        config, speculation = state.config, state.modes.speculation
        self._state = state
        self._slots = state.slots
        self._block_size = config.block_size
        self._max_model_len = config.max_model_len
        self._max_running = config.max_running
        self._is_gated = config.engine.scheduler_reserve_full_isl
        self._may_split_prompts = config.engine.enable_chunked_prefill
        self._skips_long_prompts = config.engine.rules.skips_unchunked_prompts
        self._holders_go_first = config.engine.rules.holders_go_first
        self._max_loras = state.modes.lora.max_loras if state.modes.lora else None
        self._ahead = speculation.num_prefill_lookahead if speculation else 0
        pads = speculation is not None and not speculation.by_batch_size
        self._num_padding = speculation.num_speculative_tokens if speculation and pads else 0
        self.num_blocks_to_admit = UNLIMITED
        self._num_reserved_ahead = (
            1 + speculation.num_speculative_tokens + speculation.num_lookahead_tokens if speculation else 0
        )

    def admit_waiting(self, batch: Batch) -> None:
        """While tokens, seats and blocks last."""
        state = self._state
        loras = self._loras_in_use(batch)
        passed_over: list[tuple[Request, WaitingQueue]] = []
        skipped: list[Request] = []
        while batch.budget > 0 and len(state.running) < self._max_running:
            queue = self._next_queue()
            if not len(queue):
                break
            request = queue[0]
            progress = state.progress[request]
            outcome = self._try(progress, batch, loras)
            if outcome is Outcome.STOPS:
                break
            queue.pop_first()
            if outcome is Outcome.PASSED_OVER or outcome is Outcome.LOADS:
                # one whose load has failed holds no blocks any more
                holds = progress.num_blocks > 0 or not self._holders_go_first
                passed_over.append((request, state.holding if holds else state.waiting))
            elif outcome is Outcome.SKIPPED:
                skipped.append(request)
        for request, queue in reversed(passed_over):
            queue.put_back(request)
            state.progress[request].had_to_wait = True
        if skipped:
            state.waiting.put_back_skipped(skipped)

    def _next_queue(self) -> WaitingQueue:
        state = self._state
        if len(state.holding) and len(state.waiting) and not self._holders_go_first:
            return state.policy.first_of(state.holding, state.waiting)
        return state.holding if len(state.holding) else state.waiting

    @property
    def admits_nobody(self) -> bool:
        """Whether no call admits anybody before a request comes or finishes, a transfer is over, or windows have left `num_blocks_to_admit`
        free, if all only decode.
        """
        state = self._state
        self.num_blocks_to_admit = UNLIMITED
        if state.num_waiting == 0 or len(state.running) >= self._max_running:
            return True
        loras = self._loras_in_use(None)
        lines = (state.holding, state.waiting)
        for queue in lines if self._next_queue() is state.holding else lines[::-1]:
            for request in queue:
                progress = state.progress[request]
                if progress.is_loading:
                    continue
                if progress.num_loaded or (progress.num_blocks and not progress.num_computed):
                    return False
                if not self._lacks_lora(progress, loras):
                    return self._lacks_blocks(progress)
                if queue is state.waiting and not self._holders_go_first:
                    return False  # it is yet to be passed over
        return True

    def _lacks_blocks(self, progress: Progress) -> bool:
        """Whether a request does not pass the gate, nor will before blocks come free: of what it finds cached it can only find less."""
        if not (self._is_gated and self._may_split_prompts) or progress.num_stale:
            return False
        hit = NO_HIT
        if not progress.num_computed:
            if progress.num_blocks:
                return False
            hit = self._slots.find_prefix(progress)
            connector = self._state.connector
            if connector is not None:
                if hit.num_unheld or not connector.may_find(progress):
                    return False
                hit, num_external = self._find_elsewhere(connector, progress, hit)
                if num_external < 0:
                    return False
        self.num_blocks_to_admit = self._slots.num_blocks_to_admit(progress, hit, self._state.watermark)
        return not self._passes_gate(progress, hit)

    def _loras_in_use(self, batch: Batch | None) -> set[int]:
        """The adapters of running requests that count, in a batch of decodes to come if none is given; vLLM's engine dies of too many."""
        if self._max_loras is None:
            return set()
        state = self._state
        if state.rules.counts_loras_of_all_running:
            counting = state.running
        else:
            counting = state.requests_in(batch) if batch is not None else state.next_decodes
        loras = {progress.request.lora for progress in counting} - {0}
        if len(loras) > self._max_loras:
            raise EngineCrashError(
                f"the engine of vLLM before 0.33 crashes in this run, by an assertion: {len(loras)} adapters run in one"
                f" batch, and max_loras is {self._max_loras}; raise max_loras, or use fewer pipeline stages or no async_scheduling."
            )
        return loras

    def _try(self, progress: Progress, batch: Batch, loras: set[int]) -> Outcome:
        """Admit the request, if possible; what becomes of it otherwise."""
        if self._awaits_kv(progress):
            return Outcome.PASSED_OVER
        if progress.num_blocks and not progress.num_computed:
            self._slots.free(progress)
        if progress.num_stale or self._lacks_lora(progress, loras):
            return Outcome.PASSED_OVER
        hit = NO_HIT if progress.num_computed else self._slots.find_prefix(progress)
        num_hit_tokens = hit.num_blocks * self._block_size
        if self._is_too_long(progress, num_hit_tokens, batch):
            return Outcome.SKIPPED if self._skips_long_prompts else Outcome.STOPS
        connector, num_external = self._state.connector, 0
        if connector is not None and not progress.num_computed:
            hit, num_external = self._find_elsewhere(connector, progress, hit)
            if num_external < 0:
                return Outcome.PASSED_OVER
            if num_external and not connector.loads_in_step(progress):
                return Outcome.LOADS if self._load(progress, hit, num_external) else Outcome.STOPS
        outcome = self._admit(progress, hit, num_external, batch)
        if outcome is Outcome.ADMITTED and progress.request.lora:
            loras.add(progress.request.lora)
        return outcome

    def _find_elsewhere(self, connector: Connector, progress: Progress, hit: PrefixHit) -> tuple[PrefixHit, int]:
        """What is used of a hit, and how many tokens come behind it from elsewhere; below 0 where that is not known yet."""
        before_load = self._slots.find_prefix_before_load(progress) if connector.brings_states else None
        num_external = connector.find(progress, (before_load or hit).num_blocks * self._block_size)
        if num_external <= 0:
            return hit, num_external
        if before_load is not None:
            hit, progress.request.junction = before_load, 0
        return self._slots.behind_load(hit, num_external), num_external

    def _awaits_kv(self, progress: Progress) -> bool:
        """Whether what is loaded for it is on its way; what has come can be found from here on, as in vLLM."""
        if progress.num_loaded and not progress.is_loading:
            self._slots.keep(progress, progress.num_loaded)
            progress.num_loaded = 0
        return progress.is_loading

    def _lacks_lora(self, progress: Progress, loras: set[int]) -> bool:
        lora = progress.request.lora
        return lora > 0 and lora not in loras and len(loras) == self._max_loras

    def _is_too_long(self, progress: Progress, num_hit_tokens: int, batch: Batch) -> bool:
        """Whether a prompt that cannot be cut is too long for what is left of the budget."""
        if self._may_split_prompts:
            return False
        wanted = progress.num_tokens - progress.num_computed - num_hit_tokens
        return min(wanted, batch.longest_chunk) > batch.budget

    def _passes_gate(self, progress: Progress, hit: PrefixHit) -> bool:
        return not self._is_gated or self._slots.can_admit(progress, hit, self._state.watermark)

    # -- from elsewhere --------------------------------------------------------------------------------------------

    def _load(self, progress: Progress, hit: PrefixHit, num_external: int) -> bool:
        """Allocate blocks for what comes from elsewhere, which costs neither budget nor a seat; whether there were any."""
        state = self._state
        if state.connector is None or not self._passes_gate(progress, hit):
            return False
        reserve = state.watermark + self._num_reserved_blocks()
        if not self._slots.reserve_for_load(progress, hit, num_external, reserve):
            return False
        progress.is_loading = progress.is_prefilling = True
        progress.num_loaded = hit.num_blocks * self._block_size + num_external
        state.loading.append(progress)
        if progress not in state.to_prefill:
            state.to_prefill.append(progress)
        if progress.request.num_preemptions == 0:
            state.prefix_cache_hits += hit.num_blocks * self._block_size
        state.connector.load(progress, hit.num_blocks * self._block_size, num_external)
        return True

    def _num_reserved_blocks(self) -> int:
        """What unfinished prefills will still ask for, of which one is a load until its request has run to the prompt's end."""
        ahead = self._num_reserved_ahead
        needed = -(-ahead // self._block_size) * self._slots.num_groups
        for progress in self._state.running:
            if progress.is_prefilling:
                needed += self._slots.num_still_to_take(progress, ahead)
        for progress in self._state.to_prefill:
            needed += self._slots.num_still_to_take(progress, ahead)
        return needed

    # -- to run ----------------------------------------------------------------------------------------------------

    def _admit(self, progress: Progress, hit: PrefixHit, num_external: int, batch: Batch) -> Outcome:
        num_hit_tokens = hit.num_blocks * self._block_size
        computed = progress.num_computed + num_hit_tokens + num_external
        wanted = progress.num_tokens - computed
        if batch.defers_prefills and wanted > 1:
            return Outcome.STOPS
        num_tokens = self._slots.chunk(progress, computed, min(wanted, batch.most_tokens))
        if num_tokens == 0:
            return Outcome.STOPS
        num_tokens = short_of_the_end(progress, computed, num_tokens, self._ahead)
        if num_tokens == 0:
            return Outcome.PASSED_OVER if self._state.rules.passes_over_short_chunks else Outcome.STOPS
        num_padded = self._num_padded(progress, wanted, computed, batch) if self._num_padding else 0
        if num_tokens + num_padded > batch.budget or not self._passes_gate(progress, hit):
            return Outcome.STOPS
        num_new_blocks = self._slots.admit(progress, hit, num_external + num_tokens + num_padded, self._state.watermark)
        if num_new_blocks < 0:
            return Outcome.STOPS
        request = progress.request
        self._state.start(progress, num_hit_tokens, num_external)
        if wanted > 1:
            batch.admits_prefill = True
        if num_tokens < wanted:
            progress.is_prefilling = True
        batch.admitted.append(request)
        if num_hit_tokens:
            batch.hits[request.request_id] = num_hit_tokens
        if num_external:
            batch.external[request.request_id] = num_external
        batch.grant(progress, num_tokens + num_padded, num_new_blocks, num_padded)
        return Outcome.ADMITTED

    def _num_padded(self, progress: Progress, wanted: int, num_computed: int, batch: Batch) -> int:
        """Drafts that fill up a request that wants one token to the size of the decodes beside it, so that a uniform batch stays one."""
        if wanted != 1 or batch.has_unfinished_prefill or num_computed + self._num_padding + 2 > self._max_model_len:
            return 0
        has_running = len(batch.rows) > len(batch.admitted)
        if not has_running and num_computed == 0:
            return 0
        padded = 1 + self._num_padding
        return self._num_padding if self._slots.chunk(progress, num_computed, padded) == padded else 0
