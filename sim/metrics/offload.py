"""What a CPU tier, or a store, did for a run: how much of the prompts came from it, and what was copied."""

from typing import Any

from sim.engine.records import Ints, OffloadRecords, Records


def loads_figures(found: OffloadRecords | None, queries: int) -> dict[str, Any]:
    """What came from a CPU tier or a store, and went there; nothing without one. `queries` are tokens asked for.

    `external_prefix_cache_hit_rate` is vLLM's: tokens from there over tokens asked for, as prefix_cache_hit_rate is tokens
    from the GPU's own cache over the same.
    """
    if found is None:
        return {}
    return {
        "external_prefix_cache_hit_rate": found.external_prefix_cache_hits / queries if queries else None,
        "num_loads": len(found.loaded_rows),
        "loaded_tokens": int(found.loaded_tokens.sum()),
        "loaded_bytes": found.loaded_bytes,
        "stored_bytes": found.stored_bytes,
    }


def offload_columns(records: Records) -> dict[str, Ints]:
    """For each request the tokens that it has loaded from the CPU or a store, again after a preemption; nothing without one."""
    found = OffloadRecords.joined([part for part in (records.offload, records.stored) if part])
    return {} if found is None else {"num_loaded_tokens": found.tokens_by_row(len(records.requests))}
