"""KV-cache metrics as text."""

from collections.abc import Mapping
from typing import Any

from sim.report.tables import aligned

ROWS = {
    "kv_block_lifetime_seconds": "lifetime",
    "kv_block_idle_before_evict_seconds": "idle before eviction",
    "kv_block_reuse_gap_seconds": "between two finds",
}
SHARES = {
    "used_slot_share": "of the slots taken hold a token",
    "contiguous_used_slot_share": "would, were max_model_len reserved for each request",
}


def kv_cache_text(found: Mapping[str, Any]) -> str:
    """A row a histogram, and how much of the slots was used."""
    rows = [
        [text, found[name]["count"], *(found[name][what] for what in ("mean", "median", "p90", "p99"))]
        for name, text in ROWS.items()
    ]
    table = aligned([f"KV blocks ({found['sample']:.0%} of them), s", "count", "mean", "median", "P90", "P99"], rows)
    shares = [f"{found[name]:.1%} {text}" for name, text in SHARES.items() if found[name] is not None]
    return "\n".join([table, "; ".join(shares)]).rstrip()
