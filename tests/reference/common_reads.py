"""What decodes of a step read in common: blocks that stand in the tables of several of them."""

from collections import Counter
from collections.abc import Sequence

from sim.engine.config import SchedulerConfig
from tests.reference.request import Request


def num_spared(decodes: Sequence[Request], config: SchedulerConfig) -> int:
    """Tokens of full attention's first KV group that need not be read from memory as often as somebody asks for them."""
    of_gpu, caches = config.common_reads, config.engine.enable_prefix_caching
    full = [number for number, group in enumerate(config.kv_groups) if group.window is None]
    if of_gpu is None or not caches or not full:
        return 0
    readers = Counter(block for one in decodes if one.block_tables for block in one.block_tables[full[0]])
    common = [count for count in readers.values() if count > 1]
    if not common:
        return 0
    return of_gpu.num_spared(len(decodes), sum(common) * config.block_size, len(common) * config.block_size)
