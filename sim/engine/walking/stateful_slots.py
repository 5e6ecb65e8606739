"""Room for requests of a model whose layers keep states: these take blocks of their own, and chunks end for their sake."""

from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import KVCacheManager, PrefixHit
from sim.engine.request import Request
from sim.engine.stateful_kv_cache import StatefulKVCache
from sim.engine.walking.progress import Progress
from sim.engine.walking.slots import KeptState, Slots
from sim.specs.speculation import Speculation


class StatefulSlots(Slots):
    """Slots that hold states beside tokens. Those that are made findable in a pass are yet to be computed: others find them with the next pass."""

    def __init__(self, config: SchedulerConfig, speculation: Speculation | None, num_keys: int) -> None:
        super().__init__(config, speculation, num_keys)
        self._states = self._cache.states
        self._num_state_groups = len(self._cache.state_groups)
        self._keeps_last_state = config.engine.rules.stops_before_last_token
        self._marks_last_state_again = config.engine.rules.marks_last_state_again
        self._of_this_pass: set[int] = set()
        self._kept: dict[Progress, list[KeptState]] | None = None

    def _make_cache(
        self, config: SchedulerConfig, speculation: Speculation | None, num_keys: int, hash_lookahead: int
    ) -> KVCacheManager:
        num_drafts = speculation.num_speculative_tokens if speculation else 0
        self._cache = StatefulKVCache(config, num_keys, hash_lookahead, num_drafts, drops=self._drops)
        return self._cache

    def start_pass(self) -> None:
        self._of_this_pass.clear()

    def chunk(self, progress: Progress, num_computed: int, num_tokens: int) -> int:
        return self._states.chunk(progress.request, progress.num_tokens, num_computed, num_tokens)

    def _is_of_this_pass(self, hit: PrefixHit) -> bool:
        state = hit.state
        return state is not None and state.extent.chain.key + state.end - 1 in self._of_this_pass

    def _num_to_take(self, progress: Progress, num_hit: int, start: int, end: int) -> int:
        request = progress.request
        num_held = num_hit if request.states is None else request.states.end
        return self._num_state_groups * self._states.num_to_take(request, progress.num_tokens, num_held, start, end)

    def find_prefix_before_load(self, progress: Progress) -> PrefixHit | None:
        return self._cache.find_prefix_before_load(progress.request, drops=self._drops)

    def reserve_for_load(self, progress: Progress, hit: PrefixHit, num_tokens: int, reserve: int) -> bool:
        end = hit.num_blocks * self._block_size + num_tokens
        num_held = hit.begins[self._cache.state_groups[0]]
        wanted = self._num_to_take(progress, num_held, end, end)
        if self._is_of_this_pass(hit) or not super().reserve_for_load(progress, hit, num_tokens, reserve + wanted):
            return False
        self._take(progress, 0, end, end)
        return True

    def num_still_to_take(self, progress: Progress, num_ahead: int) -> int:
        computed = max(progress.num_computed, progress.num_loaded)
        states = self._num_to_take(progress, 0, computed, progress.num_tokens)
        return super().num_still_to_take(progress, num_ahead) + states

    def num_missing(self, progress: Progress, num_tokens: int) -> int:
        start = progress.num_computed
        return super().num_missing(progress, num_tokens) + max(
            0, self._num_to_take(progress, 0, start, start + num_tokens)
        )

    def can_admit(self, progress: Progress, hit: PrefixHit, reserve: int) -> bool:
        start = progress.num_computed + hit.num_blocks * self._block_size + hit.num_external
        wanted = self._num_to_take(progress, hit.num_blocks, start, progress.num_tokens)
        return not self._is_of_this_pass(hit) and super().can_admit(progress, hit, reserve + wanted)

    def admit(self, progress: Progress, hit: PrefixHit, num_tokens: int, reserve: int) -> int:
        start = progress.num_computed + hit.num_blocks * self._block_size
        end = start + num_tokens
        wanted = self._num_to_take(progress, hit.num_blocks, start, end)
        if self._is_of_this_pass(hit):
            return -1
        if progress.num_blocks:
            num_new = self._extend(progress, end + self._lookahead, reserve + wanted)
        else:
            num_new = self._hold(progress, hit, end + self._lookahead, reserve + wanted)
        if num_new < 0:
            return -1
        num_new += self._take(progress, hit.num_blocks, start, end)
        self.keep(progress, end)
        return num_new

    def grow(self, progress: Progress, num_tokens: int) -> int:
        self.free_passed_windows(progress)
        start = progress.num_computed
        end = start + num_tokens
        wanted = self._num_to_take(progress, 0, start, end)
        num_new = self._extend(progress, max(end + self._lookahead, progress.num_slots), wanted)
        if num_new < 0:
            return -1
        num_new += self._take(progress, 0, start, end)
        self.keep(progress, end)
        return num_new

    def _take(self, progress: Progress, num_hit: int, start: int, end: int) -> int:
        num_new = self._states.take(progress.request, progress.num_tokens, num_hit, start, end) * self._num_state_groups
        self.take(num_new)
        return num_new

    def keep(self, progress: Progress, num_tokens: int) -> None:
        num_full = progress.num_full
        super().keep(progress, num_tokens)
        request = progress.request
        states = request.states
        assert states is not None, "it holds states"
        last = self._states.last_place(request.num_prompt_tokens)
        if states.checkpoint >= 0:
            self._keep_checkpoint(request, states.checkpoint, states.checkpoint_place, last)
        elif self._keeps_last_state and progress.num_full == last > 0 and last - 1 in states.numbers:
            self._find_as(request, last - 1)
        if self._kept is not None:
            kept = [states.contents.get(one, one) for one in states.numbers if num_full <= one < progress.num_full]
            self._note_kept(progress, [number for number in kept if self._cache.has_state(request, number)])

    def note_kept_states(self) -> None:
        self._kept = {}

    def _note_kept(self, progress: Progress, numbers: list[int]) -> None:
        assert self._kept is not None, "somebody drains them"
        for number in numbers:
            for group in self._cache.state_groups:
                copy = self._cache.copy_of(progress.request, group, number)
                self._kept.setdefault(progress, []).append(KeptState(progress, group, number, copy))

    def drain_kept_states(self) -> list[KeptState]:
        kept, self._kept = self._kept or {}, {}
        return [state for states in kept.values() for state in sorted(states, key=lambda state: state.group)]

    def forget_kept_states(self, progress: Progress) -> None:
        if self._kept is not None:
            self._kept.pop(progress, None)

    def free(self, progress: Progress) -> None:
        super().free(progress)
        self.forget_kept_states(progress)

    def _keep_blocks(self, progress: Progress, full: int) -> None:
        request = progress.request
        states, keyed = request.states, request.keyed
        assert states is not None, "it holds states"
        assert keyed is not None, "its blocks have keys"
        for number in states.numbers:
            if progress.num_full <= number < full and self._cache.keeps_state(request, number + 1):
                self._of_this_pass.add(keyed.key(number))
                if number in states.contents:
                    self._cache.forget_state(request, states.contents.pop(number))
        super()._keep_blocks(progress, full)

    def _keep_checkpoint(self, request: Request, number: int, place: int, last: int) -> None:
        """What a pass writes before its chunk's end is the state of a place that may lie before its block's own."""
        assert request.states is not None, "a pass wrote one"
        if place in (last, request.junction // self._block_size) or self._cache.is_segment(place):
            if place - 1 != number:
                self._forget(request, number)
                request.states.contents[number] = place - 1
            self._find_as(request, place - 1)
        elif self._forget(request, number):
            self.pool.num_evictions += self._num_state_groups

    def _forget(self, request: Request, number: int) -> bool:
        """A block that the request holds cannot be found any more as what its number says; whether it could."""
        assert request.keyed is not None, "its blocks have keys"
        if not self._cache.has_state(request, number):
            return False
        self._cache.forget_state(request, number)
        self._of_this_pass.discard(request.keyed.key(number))
        return True

    def _find_as(self, request: Request, number: int) -> None:
        """A block of its can be found as that number; vLLM 0.32 takes it for one of this pass as long as it is held."""
        keyed = request.keyed
        assert keyed is not None, "its blocks have keys"
        is_new = not self._cache.has_state(request, number)
        if is_new:
            self._cache.find_state_as(request, number)
        if is_new or self._marks_last_state_again:
            self._of_this_pass.add(keyed.key(number))
