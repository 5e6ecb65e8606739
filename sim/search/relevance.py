"""Knobs that cannot matter: for this workload, this version of vLLM, or beside other knobs."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sim.engine.scheduling_policy import scheduling_policy
from sim.search.blueprint import AUTOSCALE, REPLICAS, ROUTER, SHARING
from sim.search.space import Space
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import PoolBlock
from sim.specs.releases import NEWEST, release_for, unknown_arguments
from sim.workload.columns import Ints
from sim.workload.reuse import reusable_tokens
from sim.workload.trace import Trace

REUSE = ("enable_prefix_caching", "prefix_cache_eviction", *SHARING)


def irrelevant_knobs(space: Space, trace: Trace, vllm_version: str | None) -> dict[str, str]:
    """Each such knob of the space with the reason, to be left at vLLM's default."""
    by_argument = {**_by_workload(space, trace, vllm_version), **_by_version(vllm_version)}
    found = {
        name: reason for argument, reason in by_argument.items() for name in space.knobs if _argument(name) == argument
    }
    return found | _by_values(space, trace, found)


def _argument(knob: str) -> str:
    """Without the name of its pool."""
    return knob.rpartition(".")[2]


def _by_workload(space: Space, trace: Trace, vllm_version: str | None) -> Mapping[str, str]:
    reasons: dict[str, str] = {}
    if not reusable_tokens(trace, block_size=1):
        reasons |= dict.fromkeys(REUSE, "no prompts of the trace share a prefix")
    rules = release_for(vllm_version).rules
    names = (name for _, values in _of_argument(space, "scheduling_policy") for name in values)
    policies = [scheduling_policy(name, rules) for name in names if name]
    ranks = sorted({policy.ranks_by for policy in policies if policy.ranks_by})
    if ranks and all(_is_same_for_all(getattr(trace, column)) for column in ranks):
        reasons["scheduling_policy"] = f"all requests of the trace have the same {' and '.join(ranks)}"
    return reasons


def _is_same_for_all(column: Ints | None) -> bool:
    return column is None or len(np.unique(column)) == 1


def _by_version(vllm_version: str | None) -> Mapping[str, str]:
    version = vllm_version or NEWEST
    forced = {"enable_chunked_prefill": f"vLLM {version} splits prompts whatever is asked for"}
    return (forced if release_for(version).forces_chunked_prefill else {}) | {
        name: f"vLLM {version} does not have it; it exists since {since}"
        for name, since in unknown_arguments(version).items()
    }


def _by_values(space: Space, trace: Trace, found: Mapping[str, str]) -> dict[str, str]:
    """Knobs whose values all have the same effect."""
    reasons = {}
    longest = int(trace.prompt_tokens.max())
    for name, values in _of_argument(space, "long_prefill_token_threshold"):
        if all(not value or value >= longest for value in values):
            reasons[name] = f"no prompt is longer than {longest:,} tokens"
    for name, values in _of_argument(space, "max_num_seqs"):
        if all(value is not None and value >= len(trace) for value in values):
            reasons[name] = f"the trace has only {len(trace):,} requests"
    for name, roles in ((ROUTER, {"both", "decode"}), ("prefill_router", {"prefill"})):
        if name in space.knobs and _most_addresses(space, roles) <= 1:
            reasons[name] = "a single replica needs no router"
    if "kv_pull" in space.knobs and _most_addresses(space, {"both"}) <= 1:
        reasons["kv_pull"] = "a single replica has no other to pull from"
    return {name: reason for name, reason in reasons.items() if name not in found}


def _of_argument(space: Space, argument: str) -> list[tuple[str, tuple[Any, ...]]]:
    """The knobs of that engine argument, of any pool."""
    return [(name, values) for name, values in space.knobs.items() if _argument(name) == argument]


def _most_addresses(space: Space, roles: Collection[str]) -> float:
    """Of the pools with such a role, as many as any candidate has; a policy may add to them, and a server may have several."""
    if (space.over.fleet and space.over.fleet.is_scaled) or _of_argument(space, AUTOSCALE):
        return math.inf
    pools = {prefix: block for prefix, block in space.over.pools.items() if block.role in roles}
    if any(_has_several(space.over.engine, block) for block in pools.values()):
        return math.inf
    counts = [space.knobs.get(prefix + REPLICAS, (block.replicas,)) for prefix, block in pools.items()]
    return float(sum(map(max, counts)))


def _has_several(for_all: EngineConfig, block: PoolBlock) -> bool:
    """Whether a server of such a pool may have several addresses."""
    return any(
        block.engine.get(name, getattr(for_all, name))
        for name in ("data_parallel_external_lb", "data_parallel_hybrid_lb")
    )
