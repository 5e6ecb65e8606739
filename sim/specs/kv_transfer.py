"""KV from and to other engines, and between a GPU and its host's memory; in vLLM's names (config/kv_transfer.py)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sim.errors import ConfigError
from sim.units import GIB

KVRole = Literal["kv_producer", "kv_consumer", "kv_both"]
LoadFailurePolicy = Literal["fail", "recompute"]
EvictionPolicyName = Literal["lru", "arc"]
SIMULATED_OFFLOADING = (
    ("kv_role", "kv_both"),
    ("spec_name", "CPUOffloadingSpec"),
    ("offload_prompt_only", True),
    ("blocks_per_chunk", 1),
)
"""What may be said of the OffloadingConnector beside its size and policy: it is as vLLM has it, or as is simulated."""


@dataclass(frozen=True, slots=True)
class KVTransferConfig:
    """Which side of a transfer an engine is; transfers are reported with the first batch that ends, or starts
    (`reports_at_start`), when they are over or later. Fewer tokens than `kv_recompute_threshold` are computed, not loaded.
    """

    kv_role: KVRole = "kv_both"
    kv_load_failure_policy: LoadFailurePolicy = "fail"
    reports_at_start: bool = False
    kv_recompute_threshold: int = 0


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """The OffloadingConnector: `cpu_chunks` of `blocks_per_chunk` KV blocks on the CPU.

    Loads and stores are a queue each; one takes a base and a time a block. `eviction_policy` says what makes room. With
    `offload_prompt_only`, what is generated is not stored. `block_bytes` are those of a block on all GPUs. Raises ConfigError
    for no room.
    """

    cpu_chunks: int
    load_base_s: float
    load_block_s: float
    store_base_s: float
    store_block_s: float
    blocks_per_chunk: int = 1
    eviction_policy: EvictionPolicyName = "lru"
    offload_prompt_only: bool = True
    reports_at_start: bool = False
    block_bytes: int = 0

    def __post_init__(self) -> None:
        for name, count in (("cpu_chunks", self.cpu_chunks), ("blocks_per_chunk", self.blocks_per_chunk)):
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, got {count}.")


class OffloadingArguments(NamedTuple):
    """What `--kv-transfer-config` says of the OffloadingConnector; None is left to other flags, or to vLLM."""

    size_gib: float | None
    eviction_policy: str | None


def offloading_arguments(spelled: str, config: object) -> OffloadingArguments:
    """Read `--kv-transfer-config`: with the OffloadingConnector its host memory, or without a connector what goes with `--kv-offloading-size`.

    `spelled` is the flag. Raises ConfigError for every other connector, and for what is not simulated of this one.
    """
    given = dict(config) if isinstance(config, dict) else {}
    extra = given.pop("kv_connector_extra_config", None)
    options = dict(extra) if isinstance(extra, dict) else {}
    connector = given.pop("kv_connector", None)
    eviction_policy = options.pop("eviction_policy", None)
    if connector != "OffloadingConnector" and (connector is not None or eviction_policy is None):
        raise ConfigError(
            f"{spelled} is simulated for the OffloadingConnector, got {config!r:.80}; KV between engines is asked for by"
            " the roles of a fleet file."
        )
    size_gib = None if connector is None else _size_gib(spelled, options.pop("cpu_bytes_to_use", None))
    for name, value in (given | options).items():
        if (name, value) not in SIMULATED_OFFLOADING:
            raise ConfigError(f"{spelled}: {name} {value!r:.40} is not simulated; leave it out.")
    return OffloadingArguments(size_gib, eviction_policy)


def _size_gib(spelled: str, num_bytes: object) -> float:
    if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or num_bytes < 1:
        raise ConfigError(
            f"{spelled} needs a whole number of bytes as cpu_bytes_to_use in kv_connector_extra_config, got {num_bytes!r:.40}."
        )
    return num_bytes / GIB
