"""What the scheduler and its block pool need to know: vLLM's SchedulerConfig and CacheConfig, resolved."""

from dataclasses import dataclass, field

from sim.memory import kv_cache
from sim.memory.plan import MemoryPlan
from sim.specs.engine import Policy, ResolvedEngine
from sim.specs.rules import SchedulingRules


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table: full attention, or a sliding window of that many tokens."""

    window: int | None = None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """All arguments resolved; names, units and meaning are vLLM's. `num_gpu_blocks` includes the null block."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduling_policy: Policy = "fcfs"
    async_scheduling: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = None
    max_num_scheduled_tokens: int | None = None
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    kv_groups: tuple[KVGroup, ...] = (KVGroup(),)
    rules: SchedulingRules = field(default_factory=SchedulingRules)

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: vLLM keeps block 0 as the null block."""
        return self.num_gpu_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def token_budget(self) -> int:
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def max_running(self) -> int:
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def has_windows(self) -> bool:
        """Whether some layers look back only so far, so that blocks come free while a request runs."""
        return any(group.window is not None for group in self.kv_groups)

    @property
    def num_batches_in_flight(self) -> int:
        """Batches that are launched before the oldest has to come back: async scheduling launches the next while one runs."""
        return 2 if self.async_scheduling else 1

    @property
    def passing_delays(self) -> tuple[int | None, ...]:
        """For each KV group with a window how long after its epoch a decode begins to pass blocks: see windows.py."""
        ahead = self.num_batches_in_flight - 1
        return tuple(None if group.window is None else ahead + group.window for group in self.kv_groups)


def scheduler_config(engine: ResolvedEngine, plan: MemoryPlan) -> SchedulerConfig:
    """What vLLM's engine core hands its scheduler once memory is planned."""
    return SchedulerConfig(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        num_gpu_blocks=plan.num_gpu_blocks,
        block_size=plan.block_size,
        enable_prefix_caching=engine.enable_prefix_caching,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        scheduling_policy=engine.scheduling_policy,
        async_scheduling=engine.async_scheduling,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        max_num_active_seqs=engine.max_num_active_seqs,
        max_num_scheduled_tokens=engine.max_num_scheduled_tokens,
        scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
        watermark=engine.watermark,
        kv_groups=tuple(KVGroup(_window(group)) for group in plan.kv_groups),
        rules=engine.rules,
    )


def _window(group: kv_cache.KVGroup) -> int | None:
    """Tokens a group looks back. A chunk is taken as a window of its size, a linear layer's state as one of a token."""
    return 1 if group.kind == "linear" else group.window
