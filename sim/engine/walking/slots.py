"""Room in the KV cache for requests that are walked: how many blocks each holds, and which of them can be found."""

from typing import NamedTuple

from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import NO_HIT, KVCacheManager, PrefixHit
from sim.engine.unlimited import UNLIMITED
from sim.engine.walking.progress import Progress
from sim.specs.speculation import Speculation


class KeptState(NamedTuple):
    """A state that has been made findable: whose it is, behind which of its blocks it stands, and the number of the copy."""

    progress: Progress
    group: int
    block: int
    copy: int


class Slots:
    """A KVCacheManager, and per request what it cannot know where tokens may be rejected.

    `lowest_blank` is the smallest number of free blocks without contents in a pass.
    """

    def __init__(self, config: SchedulerConfig, speculation: Speculation | None, num_keys: int) -> None:
        hash_lookahead = speculation.num_hash_lookahead_tokens if speculation else 0
        self._drops = speculation is not None and speculation.drops_last_hit
        self.kv = self._make_cache(config, speculation, num_keys, hash_lookahead)
        self.pool = self.kv.pool
        self._block_size = config.block_size
        self.num_groups = self.kv.num_token_groups
        self._has_windows = config.has_windows
        self._max_model_len = config.max_model_len
        self._lookahead = speculation.num_lookahead_tokens if speculation else 0
        self._caches_prefixes = config.engine.enable_prefix_caching
        self._keeps_sparsely = config.caches_with_gaps
        self._num_never_kept = 0
        if speculation and (self.kv.num_groups == 1 or self._drops):
            self._num_never_kept = speculation.num_tokens_not_kept
        self._num_unhashed = max(self._num_never_kept, hash_lookahead)
        self.lowest_blank = self.pool.num_blank

    def _make_cache(
        self,
        config: SchedulerConfig,
        speculation: Speculation | None,  # noqa: ARG002 - for layers that keep states
        num_keys: int,
        hash_lookahead: int,
    ) -> KVCacheManager:
        return KVCacheManager(config, num_keys, hash_lookahead, drops=self._drops)

    def start_pass(self) -> None:
        """A pass of the scheduler begins."""

    def chunk(self, progress: Progress, num_computed: int, num_tokens: int) -> int:  # noqa: ARG002 - for layers that keep states
        """Of so many tokens behind those that are computed, how many a pass takes."""
        return num_tokens

    def find_prefix(self, progress: Progress) -> PrefixHit:
        """The longest cached prefix of a waiting request that can be used."""
        if not self._caches_prefixes:
            return NO_HIT
        hit = self.kv.find_prefix(progress.request, drops=self._drops)
        if self._keeps_sparsely:
            progress.request.junction = hit.num_alone * self._block_size if hit.num_alone > hit.num_blocks else 0
        return hit

    def find_prefix_before_load(self, progress: Progress) -> PrefixHit | None:  # noqa: ARG002 - for layers that keep states
        """What can be used of one whose other tokens come from elsewhere, where that differs."""
        return None

    def note_kept_states(self) -> None:
        """From now on, the states that are made findable are drained."""

    def drain_kept_states(self) -> list[KeptState]:
        """Those since the last time, of each request group by group."""
        return []

    def forget_kept_states(self, progress: Progress) -> None:
        """A request gives its blocks back as soon as no batch writes to them."""

    def behind_load(self, hit: PrefixHit, num_external: int) -> PrefixHit:
        """What a request needs of a hit where so many tokens come from elsewhere."""
        return self.kv.behind_load(hit, num_external)

    def num_still_to_take(self, progress: Progress, num_ahead: int) -> int:
        """What one that has begun will ask for until all that is known of it, and so many tokens behind it."""
        return self.kv.num_still_to_take(progress.num_tokens + num_ahead, progress.num_blocks)

    def can_admit(self, progress: Progress, hit: PrefixHit, reserve: int) -> bool:
        """The admission gate: whether everything known of the request fits now, `reserve` blocks left over."""
        return self.kv.can_admit(progress.num_tokens, _held(progress, hit), reserve)

    def num_blocks_to_admit(self, progress: Progress, hit: PrefixHit, reserve: int) -> int:
        """Free blocks below which `can_admit` is false, of this hit and of whatever evictions will leave of it."""
        return self.kv.num_blocks_to_admit(progress.num_tokens, _held(progress, hit), reserve)

    def grow(self, progress: Progress, num_tokens: int) -> int:
        """Blocks for the next tokens of one that holds some; how many are new, or -1 where they do not fit."""
        self.free_passed_windows(progress)
        end = progress.num_computed + num_tokens
        num_new = 0
        if end + self._lookahead > progress.num_slots:
            num_new = self._extend(progress, end + self._lookahead, 0)
            if num_new < 0:
                return -1
        if end >= progress.next_full:
            self.keep(progress, end)
        return num_new

    def take(self, num_blocks: int) -> None:
        """Of all groups, for decodes that are counted."""
        self.pool.take(num_blocks)
        self.lowest_blank = min(self.lowest_blank, self.pool.num_blank)

    def num_missing(self, progress: Progress, num_tokens: int) -> int:
        """Blocks that one lacks for its next tokens, without any ahead."""
        missing = self._num_blocks(progress.num_computed + num_tokens) - progress.num_blocks
        return max(0, missing) * self.num_groups

    def _extend(self, progress: Progress, end: int, reserve: int) -> int:
        """Take the blocks that are missing for so many tokens; -1 where there are too few."""
        missing = self._num_blocks(end) - progress.num_blocks
        num_new = missing * self.num_groups
        if num_new + reserve > self.pool.num_free:
            return -1
        if missing > 0:
            self.pool.take(num_new)
            self._note(progress, progress.num_blocks + missing)
        return num_new

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self._max_model_len) // self._block_size)

    def _note(self, progress: Progress, num_blocks: int) -> None:
        progress.num_blocks = num_blocks
        progress.num_slots = num_blocks * self._block_size
        self.lowest_blank = min(self.lowest_blank, self.pool.num_blank)

    def admit(self, progress: Progress, hit: PrefixHit, num_tokens: int, reserve: int) -> int:
        """Blocks for the next tokens of a waiting request, which may hold some already; -1 where they do not fit."""
        end = progress.num_computed + hit.num_blocks * self._block_size + num_tokens
        if progress.num_blocks:
            num_new = self._extend(progress, end + self._lookahead, reserve)
        else:
            num_new = self._hold(progress, hit, end + self._lookahead, reserve)
        if num_new >= 0:
            self.keep(progress, end)
        return num_new

    def reserve_for_load(self, progress: Progress, hit: PrefixHit, num_tokens: int, reserve: int) -> bool:
        """Blocks for tokens that will come from elsewhere, behind the hit: without contents yet, and no drafts ahead."""
        return self._hold(progress, hit, hit.num_blocks * self._block_size + num_tokens, reserve) >= 0

    def _hold(self, progress: Progress, hit: PrefixHit, end: int, reserve: int) -> int:
        num_blocks = self._num_blocks(end)
        num_new = self.kv.admit(progress.request, hit, num_blocks * self._block_size, reserve)
        if num_new is None:
            return -1
        self._note(progress, num_blocks)
        progress.num_full = hit.num_blocks
        progress.next_full = (hit.num_blocks + 1) * self._block_size
        return num_new

    def keep(self, progress: Progress, num_tokens: int) -> None:
        """Make blocks findable that are filled with known tokens."""
        if not self._caches_prefixes:
            progress.next_full = UNLIMITED
            return
        hashed = min(num_tokens - self._num_never_kept, progress.num_tokens - self._num_unhashed)
        full = hashed // self._block_size
        if full > progress.num_full:
            self._keep_blocks(progress, full)

    def _keep_blocks(self, progress: Progress, full: int) -> None:
        """The blocks before number `full` can be found."""
        shared = progress.request.num_shared_blocks
        if progress.num_full < shared or self._keeps_sparsely:
            self.kv.keep_shared_blocks(progress.request, full * self._block_size)
        progress.num_full = full
        progress.next_full = (full + 1) * self._block_size

    def free_passed_windows(self, progress: Progress) -> None:
        """Give back what lies wholly before the windows of the next token that is processed."""
        if self._has_windows and progress.num_blocks:
            self.kv.free_passed_windows(progress.request, progress.num_computed - progress.num_in_flight)

    def free(self, progress: Progress) -> None:
        """Give back all that a request holds."""
        progress.num_blank_at_release = self.pool.num_blank
        self.kv.release(progress.request, progress.num_slots, progress.num_full * self._block_size)
        progress.num_blocks = progress.num_slots = progress.num_full = progress.next_full = 0

    def free_preempted(self, progress: Progress) -> None:
        """The same for one that will ask for all of it again."""
        self.kv.key_all_blocks(progress.request, progress.num_full * self._block_size)
        self.free(progress)


def _held(progress: Progress, hit: PrefixHit) -> PrefixHit:
    """What a waiting request need not take: what it holds already, or else a hit."""
    return PrefixHit(progress.num_blocks, (), 0, 0) if progress.num_blocks else hit
