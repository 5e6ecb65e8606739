"""KV from and to other engines, and between a GPU and its host's memory; in vLLM's names (config/kv_transfer.py)."""

from dataclasses import dataclass
from typing import Literal

from sim.errors import ConfigError

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
LoadFailurePolicy = Literal["fail", "recompute"]


@dataclass(frozen=True, slots=True)
class KVTransferConfig:
    """Which side of a transfer an engine is; transfers are reported with the first batch that ends, or starts
    (`reports_at_start`), when they are over or later.
    """

    kv_role: KVRole = "kv_both"
    kv_load_failure_policy: LoadFailurePolicy = "fail"
    reports_at_start: bool = False


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """The OffloadingConnector: `cpu_chunks` of `blocks_per_chunk` KV blocks on the CPU.

    Loads and stores are a queue each; one takes a base and a time a block. With `offload_prompt_only`, what is generated is
    not stored. Raises ConfigError for no room.
    """

    cpu_chunks: int
    load_base_s: float
    load_block_s: float
    store_base_s: float
    store_block_s: float
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    reports_at_start: bool = False

    def __post_init__(self) -> None:
        for name, count in (("cpu_chunks", self.cpu_chunks), ("blocks_per_chunk", self.blocks_per_chunk)):
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, got {count}.")
