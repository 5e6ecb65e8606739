"""Knobs that cannot matter: for this workload, this version of vLLM, or beside other knobs."""

from collections.abc import Mapping

import numpy as np

from sim.engine.scheduling_policy import scheduling_policy
from sim.search.space import REPLICAS, ROUTER, Space
from sim.specs.releases import NEWEST, release_for, unknown_arguments
from sim.workload.columns import Ints
from sim.workload.reuse import reusable_tokens
from sim.workload.trace import Trace


def irrelevant_knobs(space: Space, trace: Trace, vllm_version: str | None) -> dict[str, str]:
    """Each such knob of the space with the reason, to be left at vLLM's default."""
    found = {name: reason for name, reason in _by_workload(space, trace, vllm_version).items() if name in space.knobs}
    found |= {name: reason for name, reason in _by_version(vllm_version).items() if name in space.knobs}
    return found | _by_values(space, trace, found)


def _by_workload(space: Space, trace: Trace, vllm_version: str | None) -> Mapping[str, str]:
    reasons = {}
    if not reusable_tokens(trace, block_size=1):
        reasons["enable_prefix_caching"] = "no prompts of the trace share a prefix"
    rules = release_for(vllm_version).rules
    policies = [scheduling_policy(name, rules) for name in space.knobs.get("scheduling_policy", ()) if name]
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
    thresholds = space.knobs.get("long_prefill_token_threshold")
    longest = int(trace.prompt_tokens.max())
    if thresholds and all(not value or value >= longest for value in thresholds):
        reasons["long_prefill_token_threshold"] = f"no prompt is longer than {longest:,} tokens"
    seqs = space.knobs.get("max_num_seqs")
    if seqs and all(value is not None and value >= len(trace) for value in seqs):
        reasons["max_num_seqs"] = f"the trace has only {len(trace):,} requests"
    if ROUTER in space.knobs and set(space.knobs.get(REPLICAS, (1,))) <= {1}:
        reasons[ROUTER] = "a single replica needs no router"
    return {name: reason for name, reason in reasons.items() if name not in found}
