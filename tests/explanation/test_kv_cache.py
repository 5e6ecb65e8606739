"""The life of KV blocks, by numbers worked out by hand, and held to the engine step by step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError
from sim.explanation.kv_cache import block_replays
from sim.metrics.kv_blocks import Eviction
from sim.specs.speculative_config import SpeculativeConfig
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


EVERYWHERE = {"prefix_cache_retention_interval": "None"}
DRAFTING = {"num_gpu_blocks_override": 1100, "async_scheduling": False}
EAGLE3 = SpeculativeConfig.parse(
    {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}
)
NGRAM = SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 3})
EAGLE = SpeculativeConfig.parse({"method": "eagle3", "model": "a/head", "num_speculative_tokens": 2})
MULTI_TURN, CHAT = ("multi-turn", 120), ("chat", 60)


@pytest.mark.parametrize(
    ("load", "model", "engine", "how"),
    [
        (MULTI_TURN, "Llama-3.1-8B", {"num_gpu_blocks_override": 1200}, {}),
        (CHAT, "Llama-3.1-8B", {"num_gpu_blocks_override": 1100, "async_scheduling": False}, {}),
        (MULTI_TURN, "Llama-3.1-8B", {"num_gpu_blocks_override": 1200}, {"replicas": 2, "vllm_version": "0.20.0"}),
        (CHAT, "Llama-3.1-8B", {"num_gpu_blocks_override": 1100, "pipeline_parallel_size": 2}, {}),
        (CHAT, "Llama-3.1-8B", {"num_gpu_blocks_override": 1100, "enable_prefix_caching": False}, {}),
        (CHAT, "gpt-oss-20b", {"num_gpu_blocks_override": 2200, **EVERYWHERE}, {}),
        (CHAT, "gemma-3-27b-it", {"num_gpu_blocks_override": 8000, "max_model_len": 8192, **EVERYWHERE}, {}),
        (CHAT, "Llama-3.1-8B", DRAFTING | {"speculative_config": NGRAM}, {"acceptance": 2.0}),
        (CHAT, "Llama-3.1-8B", DRAFTING | {"speculative_config": NGRAM}, {"acceptance": 2.0, "vllm_version": "0.32.0"}),
        (MULTI_TURN, "Llama-3.1-8B", DRAFTING | {"speculative_config": EAGLE3}, {}),
        (("chat", 30), "Qwen3-30B-A3B", {"num_gpu_blocks_override": 1100, "data_parallel_size": 2}, {}),
    ],
    ids=[
        "shared",
        "sync",
        "older rules",
        "stages",
        "no caching",
        "window",
        "many windows",
        "drafts",
        "older drafts",
        "reading ahead",
        "ranks",
    ],
)
def test_blocks_are_taken_and_evicted_as_the_engine_says(
    load: tuple[str, int], model: str, engine: dict[str, Any], how: dict[str, Any]
) -> None:
    """After each step as many are free, and each evicts as many contents; also with preemptions."""
    trace, limit = load
    num_preempted = held_to_the_engine(model, trace, limit, {"max_model_len": 16384, **engine}, how)
    assert num_preempted > 0 or load != CHAT


def test_blocks_of_adapters_and_of_several_answers_too() -> None:
    """What is equal under one adapter is not under another, and answers share their prompt."""
    turns, chat = sim.read_trace("multi-turn", limit=40), sim.read_trace("chat", limit=30)
    assert turns.session_id is not None
    adapted = replace(turns, lora_name=tuple(("", "a", "b")[int(name[-1], 36) % 3] for name in turns.session_id))
    small = {"num_gpu_blocks_override": 1100, "max_model_len": 16384}
    held_to_the_engine("Llama-3.1-8B", adapted, None, small | {"enable_lora": True, "max_loras": 2}, {})
    held_to_the_engine("Llama-3.1-8B", replace(chat, n=np.arange(30) % 3 + 1), None, small, {})


def held_to_the_engine(model: str, trace: Any, limit: int | None, engine: dict[str, Any], how: dict[str, Any]) -> int:
    """How many were preempted."""
    rows: list[dict[str, Any]] = []
    arguments: Any = {"engine": sim.EngineConfig(**engine), "limit": limit, "step_log": rows.append, **how}
    result = sim.simulate(model, "h100-sxm", trace, rate_scale=8, intervals=False, **arguments)
    replays, evicted = block_replays(result, 1.0), 0
    for row in filter(lambda row: "sched" in row, rows):
        replay = replays[row.get("replica", row.get("rank", 0))]
        before = replay.pool.num_evictions
        replay.take(row)
        assert (len(replay.pool.free), replay.pool.num_evictions - before) == (row["free"], row["evicted"])
        evicted += row["evicted"]
    assert evicted == result.records.num_evictions
    assert evicted > 100 or not engine.get("enable_prefix_caching", True)
    return int(result.summary["num_preemptions"])


def test_a_share_of_the_blocks_is_followed() -> None:
    """The same ones each time."""
    deployed: Any = ("Llama-3.1-8B", "h100-sxm", "multi-turn")
    engine = sim.EngineConfig(num_gpu_blocks_override=700, max_model_len=11184)
    result = sim.simulate(*deployed, limit=50, rate_scale=8, intervals=False, engine=engine)
    whole, tenth, again = (sim.kv_cache_metrics(result, sample=share).evictions for share in (1.0, 0.1, 0.1))
    assert tenth == again
    assert 0.05 < len(tenth[0]) / len(whole[0]) < 0.2
    assert {one.time_s for one in tenth[0]} <= {one.time_s for one in whole[0]}


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"engine": sim.EngineConfig(kv_offloading_size=1)}, "KV on the CPU"),
        ({"model": "gpt-oss-20b"}, "windows or states that stay cached in places alone"),
        ({"model": "Qwen3.5-4B"}, "windows or states that stay cached in places alone"),
        ({"engine": sim.EngineConfig(preemption_mode="swap")}, "what no vLLM has"),
        ({"replicas": 2, "kv_store": "capacity_gib=1"}, "a fleet that changes, hands KV over or shares it"),
        ({"fleet": {"faults": [{"at_s": 1, "replica": 0, "for_s": 1}]}}, "a fleet that changes"),
        ({"engine": sim.EngineConfig(speculative_config=EAGLE)}, "drafts under async scheduling"),
    ],
)
def test_what_is_not_followed(how: dict[str, Any], what: str) -> None:
    arguments = {"model": "Llama-3.1-8B", "gpu": "h100-sxm", "trace": "chat", "limit": 2, "intervals": False, **how}
    with pytest.raises(ConfigError, match=f"KV-cache metrics are not gathered for {what}"):
        sim.kv_cache_metrics(sim.simulate(**arguments))


def test_without_prefix_caching_vllm_hears_of_no_eviction() -> None:
    """The slots are counted all the same."""
    requests = saying((0.0, ((1, 40),)), (2.0, ((2, 40),)))
    result = run(requests, timed(1.0), num_gpu_blocks_override=4, max_model_len=49, enable_prefix_caching=False)
    told = sim.kv_cache_metrics(result, sample=1.0).to_json()
    assert told["kv_block_lifetime_seconds"]["count"] == 0
    assert told["used_slot_share"] == pytest.approx(40 / 48)


def test_windows_leave_their_blocks_to_others() -> None:
    """Of gpt-oss: a prompt of 400 tokens fills 25 blocks in each of two groups; 17 of the window's group have been passed by its second token."""
    result = sim.simulate(
        "gpt-oss-20b",
        "h100-sxm",
        saying((0.0, ((1, 400),))).rows(np.array([0]), output_tokens=np.array([3])),
        engine=sim.EngineConfig(async_scheduling=False),
        intervals=False,
    )
    (replay,) = block_replays(result, 1.0)
    rows: list[dict[str, Any]] = []
    sim.simulate(**{**result.asked, "step_log": rows.append})
    taken = []
    for row in rows:
        replay.take(row)
        taken.append(replay.slots[-1].taken // 16)
    assert taken == [50, 52 - 17, 52 - 17]


def test_a_share_out_of_range(crowded: sim.Result) -> None:
    with pytest.raises(ConfigError, match=r"must be above 0 and at most 1, got 1.5"):
        sim.kv_cache_metrics(crowded, sample=1.5)
