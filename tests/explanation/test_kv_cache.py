"""The life of KV blocks, by numbers worked out by hand, and held to the engine step by step."""

from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError
from sim.explanation.kv_cache import block_replays
from sim.metrics.kv_blocks import Eviction
from sim.workload.trace import Trace
from tests.explanation.conftest import run, timed


def saying(*requests: tuple[float, tuple[tuple[int, int], ...]]) -> Trace:
    """Requests of one output token, by arrival and what their prompts are made of."""
    arrival_s, segments = zip(*requests, strict=True)
    prompts = np.array([sum(length for _, length in path) for path in segments])
    names = tuple(f"r{number}" for number in range(len(requests)))
    return Trace(names, np.array(arrival_s), prompts, np.ones_like(prompts), segments=segments)


def test_the_life_of_blocks() -> None:
    """Three blocks of 16 and steps of a second. Three requests have 16 tokens in common and one of their own: block 0 is found at 2 and
    at 3.5; block 1, never full, is taken anew by each. At 5 a prompt of 48 tokens takes all: 1, then 2, which nobody had, then 0.
    """
    common = (7, 16)
    requests = saying((0.0, (common, (1, 1))), (2.0, (common, (2, 1))), (3.5, (common, (3, 1))), (5.0, ((4, 48),)))
    result = run(requests, timed(1.0), num_gpu_blocks_override=4, max_model_len=49)
    found = sim.kv_cache_metrics(result, sample=1.0)
    assert list(found.evictions[0]) == [
        Eviction(2.0, 2.0, 2.0, ()),
        Eviction(3.5, 1.5, 1.5, ()),
        Eviction(5.0, 1.5, 1.5, ()),
        Eviction(5.0, 5.0, 1.5, (1.5,)),
    ]
    told = found.to_json()
    assert told["kv_block_lifetime_seconds"]["count"] == 4
    assert told["kv_block_lifetime_seconds"]["mean"] == 2.5
    assert told["kv_block_reuse_gap_seconds"]["median"] == 1.5
    assert sum(at["hits"] for at in told["prefix_cache_over_time"]) == 32


def test_how_much_of_the_slots_holds_a_token() -> None:
    """The seed's two sequences: 100 and 50 tokens are 14.6 % of the 1,024 that are reserved, and 85.2 % of eleven blocks of 16."""
    result = run(saying((0.0, ((1, 100),)), (0.0, ((2, 50),))), timed(1.0), max_model_len=512)
    told = sim.kv_cache_metrics(result).to_json()
    assert told["used_slot_share"] == pytest.approx(150 / 176)
    assert told["contiguous_used_slot_share"] == pytest.approx(150 / 1024)


@pytest.mark.parametrize(
    ("trace", "how"),
    [
        ("multi-turn", {"engine": sim.EngineConfig(num_gpu_blocks_override=1200, max_model_len=16384)}),
        (
            "chat",
            {"engine": sim.EngineConfig(num_gpu_blocks_override=1100, max_model_len=16384, async_scheduling=False)},
        ),
        (
            "multi-turn",
            {
                "engine": sim.EngineConfig(num_gpu_blocks_override=1200, max_model_len=16384),
                "replicas": 2,
                "vllm_version": "0.20.0",
            },
        ),
    ],
)
def test_blocks_are_taken_and_evicted_as_the_engine_says(trace: str, how: dict[str, Any]) -> None:
    """After each step as many are free, and each evicts as many contents; also with preemptions, and under the rules of older versions."""
    deployed: Any = ("Llama-3.1-8B", "h100-sxm", trace)
    rows: list[dict[str, Any]] = []
    result = sim.simulate(*deployed, limit=120, rate_scale=8, intervals=False, step_log=rows.append, **how)
    replays, evicted = block_replays(result, 1.0), 0
    for row in rows:
        replay = replays[row.get("replica", 0)]
        before = replay.pool.num_evictions
        replay.take(row)
        assert (len(replay.pool.free), replay.pool.num_evictions - before) == (row["free"], row["evicted"])
        evicted += row["evicted"]
    assert evicted == result.records.num_evictions > 100
    if trace == "chat":
        assert result.summary["num_preemptions"] > 0


def test_a_share_of_the_blocks_is_followed() -> None:
    """The same ones each time."""
    deployed: Any = ("Llama-3.1-8B", "h100-sxm", "multi-turn")
    engine = sim.EngineConfig(num_gpu_blocks_override=1200, max_model_len=16384)
    result = sim.simulate(*deployed, limit=80, rate_scale=8, intervals=False, engine=engine)
    whole, tenth, again = (sim.kv_cache_metrics(result, sample=share).evictions for share in (1.0, 0.1, 0.1))
    assert tenth == again
    assert 0.05 < len(tenth[0]) / len(whole[0]) < 0.2
    assert {one.time_s for one in tenth[0]} <= {one.time_s for one in whole[0]}


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"engine": sim.EngineConfig(enable_prefix_caching=False)}, "prefix caching switched off"),
        ({"engine": sim.EngineConfig(pipeline_parallel_size=2)}, "stages, drafts, adapters, KV on the CPU or"),
        ({"replicas": 2, "kv_store": "capacity_gib=1"}, "a fleet that changes, hands KV over or shares it"),
        ({"model": "gpt-oss-20b"}, "layers with windows or states"),
    ],
)
def test_what_is_not_followed(how: dict[str, Any], what: str) -> None:
    arguments = {"model": "Llama-3.1-8B", "gpu": "h100-sxm", "trace": "chat", "limit": 2, "intervals": False, **how}
    with pytest.raises(ConfigError, match=f"KV-cache metrics are not gathered for {what}"):
        sim.kv_cache_metrics(sim.simulate(**arguments))


def test_a_share_out_of_range(crowded: sim.Result) -> None:
    with pytest.raises(ConfigError, match=r"must be above 0 and at most 1, got 1.5"):
        sim.kv_cache_metrics(crowded, sample=1.5)
