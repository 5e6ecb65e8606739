"""KV from and to other engines, in vLLM's names (config/kv_transfer.py)."""

from dataclasses import dataclass
from typing import Literal

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
