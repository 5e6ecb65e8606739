"""KV-cache metrics of a run, sampled as vLLM's `--kv-cache-metrics` does, and how much of the slots is used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.api import Result, simulate
from sim.engine.spans import Span
from sim.engine.walking.modes import PLAIN
from sim.errors import ConfigError
from sim.jobs import plan_of
from sim.metrics.kv_blocks import BlockReplay, Kept, Key, KVCacheMetrics, Pool
from sim.metrics.over_time import replicas_over_time

SAMPLE = 0.01  # vLLM's --kv-cache-metrics-sample
SEED = 0  # of which blocks are sampled
LIKE_PLAIN: Mapping[str, Any] = {
    "speculation": None,
    "acceptance": None,
    "num_stages": 1,
    "lora": None,
    "idle_sleep_s": 0.0,
    "throttle_interval": 0,
    "local_prefill_interval": 1,
    "shares_fairly": False,
}
"""Modes in which blocks are taken and given back as in the plain engine, with what a step log says of it."""


def kv_cache_metrics(result: Result, *, sample: float = SAMPLE) -> KVCacheMetrics:
    """Simulates the run again and follows `sample` of its blocks, 0 to 1, drawn as they are allocated.

    Raises ConfigError for a share out of range, and for runs of which a step log does not say when blocks are taken and given back: with
    drafts under async scheduling, with KV from elsewhere, and with replicas that come and go.
    """
    if not 0 < sample <= 1:
        raise ConfigError(
            f"the share of blocks to sample (kv_cache_metrics_sample) must be above 0 and at most 1, got {sample:g}."
        )
    _check(result)
    run, replays = result.run, block_replays(result, sample)
    take: Callable[[Mapping[str, Any]], None] = lambda row: replays[row.get("replica", row.get("rank", 0))].take(row)  # noqa: E731
    simulate(**{**result.asked, "intervals": False, "jobs": 1, "step_log": take})
    for replay in replays:
        replay.finish()
    blocks = [result.fleet.pools[pool].deployment.plan.num_gpu_blocks for pool in run.pool_of]
    return KVCacheMetrics(
        sample,
        tuple(replay.pool.evictions for replay in replays),
        tuple(replay.slots for replay in replays),
        list(_hits(result, blocks)),
    )


def _check(result: Result) -> None:
    refused = {
        "a fleet that changes, hands KV over or shares it": result.fleet.dynamics
        or result.fleet.disaggregation
        or result.fleet.sharing,
        "layer-wise offload": result.asked["layerwise"],
    }
    for pool in result.fleet.pools:
        modes = pool.deployment.modes
        refused |= {
            "drafts under async scheduling": modes.speculation and pool.deployment.config.num_batches_in_flight > 1,
            "KV on the CPU": modes.offload,
            "windows or states that stay cached in places alone (prefix_cache_retention_interval)": pool.deployment.config.caches_with_gaps,
            "what no vLLM has": replace(modes, **LIKE_PLAIN) != PLAIN,
        }
        if what := next((name for name, is_there in refused.items() if is_there), None):
            raise ConfigError(f"KV-cache metrics are not gathered for {what}; leave kv_cache_metrics out.")


def block_replays(result: Result, sample: float) -> list[BlockReplay]:
    """Of each replica, whose step log it takes."""
    source = plan_of(result.fleet, result.trace, result.asked["seed"], 1.0).source(result.trace)
    requests = {one.request_id: one for first in source for one in (first, *source.others(first))}
    spans: dict[str, list[Span]] = {name: one.keyed.spans.copy() for name, one in requests.items() if one.keyed}

    def key(name: str, block: int) -> Key:
        """What a request's block contains, equal where it is the same."""
        shared = next((span for span in spans.get(name, ()) if span.block <= block < span.end), None)
        return (requests[name].index, block) if shared is None else (shared.key + block - shared.block,)

    prompts = {name: one.num_prompt_tokens for name, one in requests.items()}
    return [_replay(result, *place, sample, prompts, key) for place in enumerate(result.run.pool_of)]


def _replay(
    result: Result, number: int, pool: int, sample: float, prompts: Mapping[str, int], key: Callable[[str, int], Key]
) -> BlockReplay:
    config = result.fleet.pools[pool].deployment.config
    rng = np.random.default_rng([SEED, number])
    blocks = Pool(
        config.num_usable_blocks,
        caches_prefixes=config.engine.enable_prefix_caching,
        unhashed_blocks_first=config.engine.rules.unhashed_blocks_first,
        is_sampled=lambda: rng.random() < sample,
    )
    windows = [group.window for group in config.kv_groups]
    modes = result.fleet.pools[pool].deployment.modes
    kept = Kept(
        modes.num_tokens_not_kept,
        modes.num_hash_lookahead_tokens,
        as_tokens_return=modes.speculation is None or config.engine.rules.keeps_verified_blocks,
    )
    return BlockReplay(blocks, config.block_size, config.max_model_len, windows, prompts, key, kept)


def _hits(result: Result, num_gpu_blocks: Sequence[int]) -> Iterator[dict[str, float | None]]:
    """Of all replicas' requests, those that were first scheduled in each interval."""
    over_time = replicas_over_time(result.run, num_gpu_blocks)
    prompts, cached = over_time.prompt_tokens.sum(axis=0), over_time.cached_tokens.sum(axis=0)
    for time_s, queries, hits in zip(over_time.time_s.tolist(), prompts.tolist(), cached.tolist(), strict=True):
        yield {"time_s": time_s, "queries": queries, "hits": hits, "hit_rate": hits / queries if queries else None}
