"""What the scheduler and its block pool need to know: the engine's arguments and the KV cache that memory leaves them."""

from dataclasses import dataclass

from sim.memory import kv_cache
from sim.memory.plan import MemoryPlan
from sim.specs.engine import ResolvedEngine


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table: full attention, or a sliding window of that many tokens."""

    window: int | None = None


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The resolved arguments, and what the memory plan made of the cache: `num_gpu_blocks` includes the null block.

    What a scheduler's flag is called in `engine`, it is called in vLLM. `max_model_len` is the plan's.
    """

    engine: ResolvedEngine
    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16
    kv_groups: tuple[KVGroup, ...] = (KVGroup(),)

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

    @property
    def max_running(self) -> int:
        return self.engine.max_num_active_seqs or self.engine.max_num_seqs

    @property
    def has_windows(self) -> bool:
        """Whether some layers look back only so far, so that blocks come free while a request runs."""
        return any(group.window is not None for group in self.kv_groups)

    @property
    def num_batches_in_flight(self) -> int:
        """Batches that are launched before the oldest has to come back: async scheduling launches the next while one runs."""
        return self.engine.num_batches_in_flight

    @property
    def passing_delays(self) -> tuple[int | None, ...]:
        """For each KV group with a window how long after its epoch a decode begins to pass blocks: see windows.py."""
        ahead = self.num_batches_in_flight - 1
        return tuple(None if group.window is None else ahead + group.window for group in self.kv_groups)


def scheduler_config(engine: ResolvedEngine, plan: MemoryPlan) -> SchedulerConfig:
    """What vLLM's engine core hands its scheduler once memory is planned."""
    groups = tuple(KVGroup(_window(group)) for group in plan.kv_groups)
    return SchedulerConfig(engine, plan.num_gpu_blocks, plan.max_model_len, plan.block_size, groups)


def _window(group: kv_cache.KVGroup) -> int | None:
    """Tokens a group looks back. A chunk is taken as a window of its size, a linear layer's state as one of a token."""
    return 1 if group.kind == "linear" else group.window
