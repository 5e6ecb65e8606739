"""KV-cache metrics of a run, sampled as vLLM's `--kv-cache-metrics` does, and how much of the slots is used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sim.api import Result, simulate
from sim.engine.spans import Span
from sim.engine.walking.modes import PLAIN
from sim.errors import ConfigError
from sim.jobs import plan_of
from sim.metrics.kv_blocks import BlockReplay, Key, KVCacheMetrics, Pool
from sim.metrics.over_time import replicas_over_time

SAMPLE = 0.01  # vLLM's --kv-cache-metrics-sample
SEED = 0  # of which blocks are sampled


def kv_cache_metrics(result: Result, *, sample: float = SAMPLE) -> KVCacheMetrics:
    """Simulates the run again and follows `sample` of its blocks, 0 to 1, drawn as they are allocated.

    Raises ConfigError for a share out of range, and for runs of which blocks are not followed: without prefix caching, with windows or
    states, and with KV from elsewhere.
    """
    if not 0 < sample <= 1:
        raise ConfigError(
            f"the share of blocks to sample (kv_cache_metrics_sample) must be above 0 and at most 1, got {sample:g}."
        )
    _check(result)
    run, replays = result.run, block_replays(result, sample)
    take: Callable[[Mapping[str, Any]], None] = lambda row: replays[row.get("replica", 0)].take(row)  # noqa: E731
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
        "requests with several answers": len(result.trace.more_answers),
    }
    for pool in result.fleet.pools:
        deployment = pool.deployment
        refused |= {
            "layers with windows or states": not deployment.plan.has_full_attention_alone,
            "prefix caching switched off": not deployment.engine.enable_prefix_caching,
            "ranks in lock step": deployment.lock_step,
            "stages, drafts, adapters, KV on the CPU or what no vLLM has": deployment.modes != PLAIN,
        }
        if what := next((name for name, is_there in refused.items() if is_there), None):
            raise ConfigError(f"KV-cache metrics are not gathered for {what}; leave kv_cache_metrics out.")


def _keys(result: Result) -> Callable[[str, int], Key]:
    """What the blocks of requests contain, equal where it is the same."""
    source = plan_of(result.fleet, result.trace, result.asked["seed"], 1.0).source(result.trace)
    spans: dict[str, list[Span]] = {
        request.request_id: request.keyed.spans.copy() for request in source if request.keyed
    }
    rows = {name: row for row, name in enumerate(result.trace.request_id)}

    def key(name: str, block: int) -> Key:
        shared = next((span for span in spans.get(name, ()) if span.block <= block < span.end), None)
        return (rows[name], block) if shared is None else (shared.key + block - shared.block,)

    return key


def block_replays(result: Result, sample: float) -> list[BlockReplay]:
    """Of each replica, whose step log it takes."""
    key = _keys(result)
    prompts = dict(zip(result.trace.request_id, result.trace.prompt_tokens.tolist(), strict=True))
    return [_replay(result, *place, sample, prompts, key) for place in enumerate(result.run.pool_of)]


def _replay(
    result: Result, number: int, pool: int, sample: float, prompts: Mapping[str, int], key: Callable[[str, int], Key]
) -> BlockReplay:
    config = result.fleet.pools[pool].deployment.config
    rng = np.random.default_rng([SEED, number])
    first = config.engine.rules.unhashed_blocks_first
    blocks = Pool(config.num_usable_blocks, unhashed_blocks_first=first, is_sampled=lambda: rng.random() < sample)
    return BlockReplay(blocks, config.block_size, config.max_model_len, prompts, key)


def _hits(result: Result, num_gpu_blocks: Sequence[int]) -> Iterator[dict[str, float | None]]:
    """Of all replicas' requests, those that were first scheduled in each interval."""
    over_time = replicas_over_time(result.run, num_gpu_blocks)
    prompts, cached = over_time.prompt_tokens.sum(axis=0), over_time.cached_tokens.sum(axis=0)
    for time_s, queries, hits in zip(over_time.time_s.tolist(), prompts.tolist(), cached.tolist(), strict=True):
        yield {"time_s": time_s, "queries": queries, "hits": hits, "hit_rate": hits / queries if queries else None}
