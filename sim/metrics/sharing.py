"""What came of KV that replicas share: how much of the prompts came from a store or from a peer, and what went over the links."""

from typing import Any

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.cluster.shared_records import PullRecords, StoreRecords
from sim.metrics.columns import Columns
from sim.metrics.handovers import link_figures
from sim.metrics.offload import loads_figures
from sim.metrics.statistics import statistics
from sim.metrics.summary import in_ms
from sim.units import MS


def sharing_figures(run: ClusterRecords) -> dict[str, Any]:
    """`kv_store` or `kv_pulls`; nothing for other fleets.

    `external_prefix_cache_hit_rate` is vLLM's: tokens from elsewhere over tokens asked for, as prefix_cache_hit_rate is tokens
    from the GPU's own cache over the same.
    """
    found = run.shared
    if isinstance(found, StoreRecords):
        return {"kv_store": _store_figures(found, run)}
    return {"kv_pulls": _pull_figures(found, run)} if found is not None else {}


def _store_figures(found: StoreRecords, run: ClusterRecords) -> dict[str, Any]:
    """What it held at most in shares of its capacity; its own link is that of no replica."""
    links = link_figures(found.ports, run.span_s)
    for link in links:
        link["replica"] = None if link["replica"] == len(run.replicas) else link["replica"]
    return {
        **loads_figures(run.merged.stored, run.merged.prefix_cache_queries),
        "capacity_bytes": found.num_chunks * found.chunk_bytes,
        "max_usage": found.most_chunks / found.num_chunks,
        "num_evictions": found.num_evictions,
        "links": links,
    }


def _pull_figures(found: PullRecords, run: ClusterRecords) -> dict[str, Any]:
    pulled, requests = found.are_pulled, run.merged.requests
    queries = run.merged.prefix_cache_queries
    return {
        "external_prefix_cache_hit_rate": int(found.num_tokens.sum()) / queries if queries else None,
        "requests": int(pulled.sum()),
        "pulled_tokens": int(found.num_tokens.sum()),
        "total_bytes": int(found.num_bytes.sum()),
        **in_ms({"kv_pull": statistics((found.end_s - found.start_s)[pulled])}),
        **in_ms({"kv_pull_wait": statistics((found.start_s - requests.arrival_s)[pulled])}),
        "links": link_figures(found.ports, run.span_s),
    }


def pull_columns(run: ClusterRecords) -> Columns:
    """For each request from whom its prefix was pulled (-1: nobody), and how much; nothing where nobody pulls."""
    found = run.shared
    if not isinstance(found, PullRecords):
        return {}
    return {
        "pulled_from": found.source,
        "num_pulled_tokens": found.num_tokens,
        "kv_pull_ms": np.asarray((found.end_s - found.start_s) / MS),
    }
