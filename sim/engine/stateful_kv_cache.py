"""The KV cache of a model whose layers keep states: which of them a request finds, holds and gives back.

Mirrors MambaManager (vLLM 0.28 to 0.33, v1/core/single_type_kv_cache_manager.py); layer_states.py says when.
"""

from collections.abc import Sequence
from typing import Final

from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import NO_HIT, KVCacheManager, PrefixHit, num_unheld
from sim.engine.layer_states import LayerStates
from sim.engine.prefix_cache import Piece, SparseHeld
from sim.engine.request import Request
from sim.engine.retention import Ranges


class StatefulKVCache(KVCacheManager):
    """One over several KV groups of which `state_groups` keep states: all of them those after the same tokens of a request."""

    def __init__(
        self, config: SchedulerConfig, num_keys: int, hash_lookahead: int, num_drafts: int, *, drops: bool
    ) -> None:
        super().__init__(config, num_keys, hash_lookahead, drops=drops)
        self.states: Final = LayerStates(config, hash_lookahead, num_drafts, drops=drops)
        self.state_groups = [group for group, one in enumerate(config.kv_groups) if one.keeps_states]

    # -- what is found ---------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request, *, drops: bool = False) -> PrefixHit:
        hit = super().find_prefix(request, drops=drops)
        if hit is not NO_HIT:
            hit.state = self._state_among(hit.pieces)
        return hit

    def _state_among(self, pieces: Sequence[Sequence[Piece]]) -> Piece | None:
        found = pieces[self.state_groups[0]] if pieces else ()
        return found[-1] if found else None

    def find_prefix_before_load(self, request: Request, *, drops: bool) -> PrefixHit | None:
        """What full attention has of a waiting request, where the rest comes from elsewhere with its state; None where others have more of it."""
        keyed, lookup = request.keyed, self._lookup
        if keyed is None:
            return None
        most = (request.num_tokens - 1) // self._block_size
        ends = {
            group: lookup.reach(kind, keyed, request.num_tokens, most, drops=drops)
            for kind in lookup.kinds
            for group in kind.numbers
        }
        begins = [ends[group] for group in range(self.num_groups)]
        num_alone = ends[lookup.kinds[0].numbers[0]]
        if max(begins) > num_alone:
            return None
        pieces = lookup.pieces(keyed, begins)
        hit = PrefixHit(num_alone, pieces, 0, 0, num_alone, begins)
        hit.state = self._state_among(pieces)
        return hit

    def behind_load(self, hit: PrefixHit, num_external: int) -> PrefixHit:
        behind = super().behind_load(hit, num_external)
        behind.state, behind.num_external = hit.state, num_external
        if hit.pieces:  # vLLM counts their states as taken, which the load passes
            behind.num_unheld += sum([num_unheld(hit.pieces[group]) for group in self.state_groups])
        return behind

    # -- what is held ----------------------------------------------------------------------------------------------

    def _last_named_token(self, request: Request) -> int:
        if self._retention is not None:
            return super()._last_named_token(request)
        return request.num_prompt_tokens + request.max_tokens

    def ranges_kept(self, request: Request, group: int, first: int, last: int) -> Ranges:
        if group not in self.state_groups:
            return super().ranges_kept(request, group, first, last)
        numbers = request.states.numbers if request.states is not None else []
        return [(n, n + 1) for n in numbers if first <= n < last and self.keeps_state(request, n + 1)]

    def keeps_state(self, request: Request, num_blocks: int) -> bool:
        """Whether the state after so many blocks can be found once it is there."""
        return self._retention is None or self._retention.keeps_state(self.state_groups[0], request, num_blocks)

    def is_segment(self, num_blocks: int) -> bool:
        """Whether that can be found of any prompt."""
        return self._retention is None or self._retention.is_segment(num_blocks)

    def has_state(self, request: Request, number: int) -> bool:
        """Whether a request holds a block that can be found as that number of its own."""
        return self._held(request, self.state_groups[0]).serial(number) >= 0

    def forget_state(self, request: Request, number: int) -> None:
        """What a request holds as that number cannot be found any more."""
        for group in self.state_groups:
            for copy in self._held(request, group).cut_out(number):
                copy.chain.remove(copy)

    def find_state_as(self, request: Request, number: int) -> None:
        """A block that cannot be found can be, as that number of the request."""
        assert request.keyed is not None, "its blocks have keys"
        for group in self.state_groups:
            self._held(request, group).put_between(self._caches[group], request.keyed.spans, number)

    def _held(self, request: Request, group: int) -> SparseHeld:
        assert request.keyed is not None, "its blocks have keys"
        held = request.keyed.held[group]
        assert isinstance(held, SparseHeld), "states have gaps between them"
        return held

    # -- what is given back ----------------------------------------------------------------------------------------

    def free_passed_windows(self, request: Request, num_processed: int) -> None:
        super().free_passed_windows(request, num_processed)
        states = request.states
        passed = self.states.passed(states, num_processed) if states is not None else []
        if states is None or not passed:
            return
        contents = [states.contents.pop(number, number) for number in reversed(passed)]
        for group in self.state_groups:
            held = self._held(request, group)
            copies = [extent for content in contents for extent in held.cut_out(content)]
            self.pool.release(0, len(passed) - len(copies))
            self.pool.give_back(copies)

    def _num_held(self, request: Request, group: int, num_not_passed: int) -> int:
        if group not in self.state_groups:
            return super()._num_held(request, group, num_not_passed)
        return len(request.states.numbers) if request.states is not None else 0

    def release(self, request: Request, num_computed: int, num_hashed_tokens: int) -> None:
        super().release(request, num_computed, num_hashed_tokens)
        request.states = None
