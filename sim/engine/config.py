"""The configuration of the scheduler and its block pool: the engine's arguments, and the KV cache that fits into memory."""

from dataclasses import dataclass

from sim.errors import ConfigError
from sim.memory import kv_cache
from sim.memory.plan import MemoryPlan
from sim.specs.arguments import DENSELY
from sim.specs.engine import ResolvedEngine
from sim.specs.model import ceil_div
from sim.steptime.common_reads import CommonReads


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table: with full attention (None), or with a sliding window of `window` tokens.

    `is_kept_sparsely`: where there is a retention interval, not all of its blocks can be found. Layers that keep a state instead of tokens (`keeps_states`) need
    what a window of two tokens does: the state behind the last of them. Of a chunk's blocks they have the last one only, for the state at its end, and where a pass
    can write another one (`writes_checkpoints`, vLLM's prefill checkpoints) the one before too. `has_drafter`: vLLM knows layers of a drafter among them.
    """

    window: int | None = None
    is_kept_sparsely: bool = True
    keeps_states: bool = False
    writes_checkpoints: bool = False
    has_drafter: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The resolved arguments, and what the memory plan made of the cache: `num_gpu_blocks` includes the null block.

    What a scheduler's flag is called in `engine`, it is called in vLLM. `max_model_len` is the plan's. Without prefix caching a request keeps its states
    in `num_state_blocks` from its admission to its end, and they are no KV group. `common_reads`: how the GPU reads what several decodes hold, where that is asked.
    """

    engine: ResolvedEngine
    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16
    kv_groups: tuple[KVGroup, ...] = (KVGroup(),)
    num_state_blocks: int = 0
    common_reads: CommonReads | None = None

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: vLLM keeps block 0 as the null block."""
        return self.num_gpu_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        return int(self.engine.watermark * self.num_gpu_blocks)

    @property
    def token_budget(self) -> int:
        return self.engine.max_num_scheduled_tokens or self.engine.max_num_batched_tokens

    def longest_chunk(self, num_requests: int) -> int:
        """The most tokens that one of so many requests may get in a pass: the token budget, or the long-prefill threshold if it applies."""
        engine = self.engine
        threshold = engine.long_prefill_token_threshold
        if not threshold:
            return self.token_budget
        if num_requests <= 1 and engine.rules.lone_request_ignores_threshold:
            return self.token_budget
        if engine.long_prefill_token_threshold_adaptive:
            return max(threshold, engine.max_num_batched_tokens // max(1, num_requests))
        return threshold

    @property
    def max_running(self) -> int:
        return self.engine.max_num_active_seqs or self.engine.max_num_seqs

    @property
    def has_windows(self) -> bool:
        """Whether any layers have a sliding window, so that requests give blocks back while they run."""
        return any(group.window is not None for group in self.kv_groups)

    @property
    def has_sliding_windows(self) -> bool:
        """Whether any layers have a window that is not a state."""
        return any(group.window is not None and not group.keeps_states for group in self.kv_groups)

    @property
    def keeps_states(self) -> bool:
        """Whether any layers keep states that can be found, so that chunks end where blocks do."""
        return any(group.keeps_states for group in self.kv_groups)

    @property
    def drops_last_hit(self) -> tuple[bool, ...]:
        """By group, whether a drafter that reads ahead has the last block of its hit computed again: where its layers are, or some just like them. Of all
        where vLLM does not know its layers.
        """
        kinds = [(group.window, group.keeps_states) for group in self.kv_groups]
        marked = {kind for kind, group in zip(kinds, self.kv_groups, strict=True) if group.has_drafter}
        return tuple(not marked or kind in marked for kind in kinds)

    @property
    def num_tokens_left_to_decode(self) -> int:
        """Those at a prompt's end that a decode engine computes itself where others prefill for it: of a state, the step that makes it the last one's."""
        return int(self.keeps_states or self.num_state_blocks > 0)

    @property
    def caches_with_gaps(self) -> bool:
        """Whether blocks that are full and known may not be found: those of windows that do not stay, and of states those between the ends of chunks."""
        if not self.engine.enable_prefix_caching:
            return False
        if self.keeps_states:
            return True
        if self.retention_interval is None:
            return False
        return any(group.window is not None and group.is_kept_sparsely for group in self.kv_groups)

    @property
    def retention_interval(self) -> int | None:
        """Tokens between the places of a prompt at which windows stay cached, beside its end and where prompts part; None for all places."""
        interval = self.engine.prefix_cache_retention_interval
        return None if interval == DENSELY else int(interval)

    @property
    def num_batches_in_flight(self) -> int:
        """The most batches that are launched and have not come back: 1, or 2 with async scheduling."""
        return self.engine.num_batches_in_flight

    @property
    def passing_delays(self) -> tuple[int | None, ...]:
        """By KV group, in passes: how long after its epoch a decode begins to pass blocks (see windows.py); None without a window."""
        ahead = self.num_batches_in_flight - 1
        return tuple(None if group.window is None else ahead + group.window for group in self.kv_groups)


def scheduler_config(engine: ResolvedEngine, plan: MemoryPlan, common_reads: CommonReads | None) -> SchedulerConfig:
    """The scheduler's configuration, from the resolved engine arguments and the memory plan. Raises ConfigError where they do not go together."""
    _check_retention(engine.prefix_cache_retention_interval, plan)
    states = [group for group in plan.kv_groups if group.kind == "linear"]
    caches = engine.enable_prefix_caching
    groups = tuple(_group(group, engine) for group in plan.kv_groups if caches or group.kind != "linear")
    num_state_blocks = 0 if caches else len(states) * engine.uniform_query_len
    return SchedulerConfig(
        engine, plan.num_gpu_blocks, plan.max_model_len, plan.block_size, groups, num_state_blocks, common_reads
    )


def _check_retention(interval: int | str, plan: MemoryPlan) -> None:
    """As vLLM's kv_cache_coordinator.py checks it (0.33)."""
    block_size = plan.block_size
    if interval in (0, DENSELY):
        return
    if all(group.window is None and group.kind != "linear" for group in plan.kv_groups):
        raise ConfigError(
            f"prefix_cache_retention_interval is for models with sliding windows or states, got {interval} for one without; leave it out."
        )
    if int(interval) % block_size:
        raise ConfigError(
            f"prefix_cache_retention_interval must be a multiple of the block size, {block_size}, got {interval}; choose"
            f" {ceil_div(int(interval), block_size) * block_size}."
        )


def _group(group: kv_cache.KVGroup, engine: ResolvedEngine) -> KVGroup:
    """A chunk of chunked attention is taken as a window of its size."""
    if group.kind == "linear":
        return KVGroup(window=2, keeps_states=True, writes_checkpoints=engine.writes_state_checkpoints)
    drafts = engine.speculation
    is_known = drafts is not None and drafts.method in engine.rules.knows_layers_of_drafters
    return KVGroup(group.window, group.kind == "sliding", has_drafter=group.has_drafter and is_known)
