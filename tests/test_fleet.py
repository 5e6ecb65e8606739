"""A fleet from Python and from the command line: totals of all replicas, and what each of them did."""

from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import ConfigError, SimError


def fleet(**arguments: Any) -> Any:
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", limit=60, intervals=False, **arguments)


def test_replicas_add_up_to_the_fleet() -> None:
    found = fleet(replicas=3, router="round_robin")
    replicas = found.summary["replicas"]
    assert [replica["requests"] for replica in replicas] == [20, 20, 20]
    for key in ("completed", "total_output_tokens"):
        assert sum(replica[key] for replica in replicas) == found.summary[key]
    assert max(replica["max_kv_cache_usage"] for replica in replicas) == found.summary["max_kv_cache_usage"]
    busy = [replica["gpu_busy_fraction"] for replica in replicas]
    assert sum(busy) / 3 == pytest.approx(found.summary["gpu_busy_fraction"])
    assert found.requests["replica"].value_counts().to_dict() == {0: 20, 1: 20, 2: 20}
    counts = found.steps.groupby("replica").size()
    assert counts.sum() == found.summary["num_steps"]
    assert found.summary["gpu_hours"] == pytest.approx(3 * fleet().summary["gpu_hours"], rel=0.2)


def test_a_router_with_options_draws_from_the_seed() -> None:
    asked = {"policy": "llm_d", "prefix": 5}
    found = fleet(replicas=4, router=asked, seed=3)
    assert found.summary["fleet"] == {"replicas": 4, "router": asked}
    assert found.requests.equals(fleet(replicas=4, router="llm_d:prefix=5", seed=3).requests)
    served = [fleet(replicas=4, router="random", seed=seed).requests["replica"].tolist() for seed in (1, 1, 2)]
    assert served[0] == served[1] != served[2]
    assert "4 replicas of 1 x h100-sxm behind llm_d:prefix=5" in str(found)


def test_prefix_aware_routing_hits_more() -> None:
    rates = {name: fleet(replicas=4, router=name).summary["prefix_cache_hit_rate"] for name in ("random", "llm_d")}
    assert rates["llm_d"] > rates["random"] + 0.1


def test_one_replica_says_nothing_of_a_fleet(tmp_path: Path) -> None:
    found = fleet()
    assert not {"fleet", "replicas"} & set(found.summary)
    assert "replica" not in found.requests
    found.write(tmp_path / "one")
    fleet(replicas=2).write(tmp_path / "two")
    names = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("one", "two")}
    assert names["two"] - names["one"] == {"replicas.csv"}
    assert names["one"] < names["two"]


@pytest.mark.parametrize(
    "how",
    [
        {"replicas": 2},
        {"replicas": 2, "kv_store": "capacity_gib=64"},
        {"fleet": {"pools": [{"role": "prefill"}, {"role": "decode"}]}},
        {"fleet": {"pools": [{"replicas": 2}], "router": "round_robin", "faults": [{"replica": 1, "at_s": 9.0}]}},
    ],
)
def test_steps_of_several_replicas_are_logged_with_their_replica(how: dict[str, Any]) -> None:
    """All of them, and the log changes nothing."""
    rows: list[dict[str, Any]] = []
    deployed: Any = ("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl")
    logged, silent = (
        sim.simulate(*deployed, limit=12, intervals=False, step_log=log, **how) for log in (rows.append, None)
    )
    assert logged.requests.equals(silent.requests)
    steps = logged.steps.groupby("replica").size()
    if "faults" not in str(how):  # what was on the device of a lost replica never came back
        assert [sum(row["replica"] == number for row in rows) for number in steps.index] == steps.tolist()
    assert {row["replica"] for row in rows} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"replicas": 0}, "replicas must be from 1 to 512, got 0"),
        ({"replicas": 10**5}, "replicas must be from 1 to 512, got 100000"),
        ({"replicas": 2, "jobs": 2, "step_log": print}, "a step log is written by one process, got jobs 2"),
        ({"router": "least"}, "router must be one of .*, got 'least'. Did you mean least_loaded"),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fleet(**arguments)


UNLIKE = {
    "router": "round_robin",
    "pools": [
        {"name": "small", "replicas": 2, "engine": {"max_num_seqs": 4}},
        {"name": "large", "gpu": "h200-sxm", "engine": {"tensor_parallel_size": 2, "block_size": 32}},
    ],
}


def test_pools_add_up_to_the_fleet() -> None:
    """Unlike ones: their requests, their GPUs at their prices, their steps; what differs has no figure of its own."""
    found = fleet(fleet=UNLIKE, engine=sim.EngineConfig(max_num_seqs=8))
    summary, pools = found.summary, found.summary["pools"]
    assert summary["fleet"] == {"replicas": 3, **UNLIKE}
    assert [pool["pool"] for pool in pools] == ["small", "large"]
    assert [pool["engine"] for pool in pools] == [
        {"max_num_seqs": 4},
        {"max_num_seqs": 8, "tensor_parallel_size": 2, "block_size": 32},
    ]
    for key in ("arrived", "completed", "total_output_tokens", "num_steps", "num_preemptions"):
        assert sum(pool[key] for pool in pools) == summary[key]
    assert (summary["gpu"], summary["tensor_parallel_size"], summary["num_gpu_blocks"]) == (None, None, None)
    assert max(pool["max_kv_cache_usage"] for pool in pools) == summary["max_kv_cache_usage"]
    busy_s = sum(pool["gpu_busy_fraction"] * pool["replicas"] for pool in pools)
    assert busy_s / 3 == pytest.approx(summary["gpu_busy_fraction"])
    assert [(row["pool"], row["gpu"]) for row in summary["replicas"]] == [
        ("small", "h100-sxm"),
        ("small", "h100-sxm"),
        ("large", "h200-sxm"),
    ]
    hours = summary["duration"] / 3600
    prices = [found.fleet.pools[place].deployment.gpu.price_usd_per_hour for place in (0, 1)]
    assert summary["gpu_hours"] == pytest.approx(4 * hours)
    assert summary["cost_usd"] == pytest.approx(2 * hours * (prices[0] + prices[1]))
    assert summary["limits"]["text"].startswith("small: ")
    assert "2 replicas of 1 x h100-sxm and 1 replica of 2 x h200-sxm behind round_robin" in str(found)


def test_steps_of_unlike_pools_are_those_of_each() -> None:
    """KV usage and CUDA graphs as each one's own."""
    found = fleet(fleet=UNLIKE)
    steps = found.steps.groupby("replica")
    assert steps.size().sum() == found.summary["num_steps"]
    usages = [row["max_kv_cache_usage"] for row in found.summary["replicas"]]
    assert steps["kv_cache_usage"].max().tolist() == pytest.approx(usages)


def test_one_pool_is_a_fleet_of_its_replicas() -> None:
    """All figures of the same number of equal replicas, and the pool's are those of the fleet."""
    one, plain = fleet(fleet={"pools": [{"replicas": 3}]}).summary, fleet(replicas=3).summary
    for key in set(plain) - {"fleet", "replicas", "arguments", "wall_time_s"}:
        assert one[key] == plain[key], key
    (pool,) = one["pools"]
    for key in ("mean_ttft_ms", "p99_itl_ms", "gpu_busy_fraction", "model_flops_utilization", "num_gpu_blocks"):
        assert pool[key] == one[key]


def test_a_fleet_of_a_single_replica_is_that_replica() -> None:
    one, plain = fleet(fleet={"pools": [{}]}), fleet()
    assert one.requests.drop(columns="replica", errors="ignore").equals(plain.requests)
    assert one.summary["fleet"] == {"replicas": 1, "router": "least_loaded", "pools": [{}]}


def test_intervals_are_those_of_the_pool_that_is_least_known() -> None:
    """A B300 was measured on no run; its band is wider, and both pools' step times move by it."""
    pools = [{}, {"name": "new", "gpu": "b300-sxm"}]
    mixed = sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", limit=60, fleet={"pools": pools})
    known = sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", limit=60, fleet={"pools": [{}, {}]})
    bands = [found.summary["confidence"]["bands_percent"]["tpot"] for found in (mixed, known)]
    assert bands[0] > bands[1]
    low, high = mixed.summary["confidence"]["intervals"]["mean_tpot_ms"]
    assert low < mixed.summary["mean_tpot_ms"] < high


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"fleet": UNLIKE, "replicas": 2}, "the pools of `fleet` say how many replicas there are, got replicas 2"),
        ({"fleet": UNLIKE, "router": "llm_d"}, "fleet has a router, 'round_robin', and 'llm_d' is asked for"),
        ({"fleet": {"pools": [{}], "router": "lmd"}}, "^fleet: router must be one of .* Did you mean llm_d"),
        ({"fleet": {"pools": [{"gpu": "h10"}]}}, "^fleet: pool 0: GPU `h10`"),
        ({"fleet": {"pools": [{"engine": {"max_seqs": 2}}]}}, "pool 0: `engine.max_seqs` is no engine argument"),
        ({"fleet": {"pools": [{"name": "x", "engine": {"max_num_seqs": 0}}]}}, "^fleet: x: max_num_seqs must be"),
        (
            {"fleet": {"pools": [{}, {"name": "few", "engine": {"num_gpu_blocks_override": 9}}]}},
            "few: .* does not start",
        ),
    ],
)
def test_fleets_that_cannot_be_asked_for(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SimError, match=sentence):
        fleet(**arguments)


HANDING_OVER = {
    "decider": {"policy": "prefix_based", "non_cached_tokens": 256},
    "transfer": {"bandwidth_gb_s": 25.0, "latency_ms": 2.0},
    "pools": [
        {"name": "prefill", "role": "prefill", "replicas": 2},
        {"name": "decode", "role": "decode", "engine": {"tensor_parallel_size": 2}},
    ],
}


def test_prompts_are_computed_in_one_pool_and_answered_in_another() -> None:
    """What moved is in the summary and by request; little prompts stay, and times are in order."""
    found = fleet(fleet=HANDING_OVER)
    summary, requests = found.summary, found.requests
    moved = requests["prefill_replica"] >= 0
    assert 0 < moved.sum() < len(requests)
    assert summary["completed"] == len(requests)
    assert set(requests["replica"]) == {2}
    transfers = summary["kv_transfers"]
    assert transfers["requests"] == moved.sum() == summary["pools"][0]["completed"]
    assert (
        transfers["total_bytes"]
        == requests["kv_bytes"].sum()
        == sum(link["bytes"] for link in transfers["links"] if link["direction"] == "in")
    )
    steps = ["arrival_s", "prefill_end_s", "kv_pull_start_s", "kv_pull_end_s", "first_token_s", "finish_s"]
    assert (requests.loc[moved, steps].diff(axis=1).iloc[:, 1:] > -1e-9).all(axis=None)
    gib_per_s = requests.loc[moved, "kv_bytes"] / (requests.loc[moved, "kv_transfer_ms"] / 1e3)
    assert gib_per_s.max() < 25e9
    assert requests.loc[~moved, "kv_transfer_ms"].isna().all()


def test_a_slower_link_delays_first_tokens_and_nothing_before() -> None:
    slow = fleet(fleet={**HANDING_OVER, "transfer": {"bandwidth_gb_s": 0.5, "latency_ms": 2.0}})
    fast = fleet(fleet=HANDING_OVER)
    assert slow.summary["kv_transfers"]["mean_kv_transfer_ms"] > 4 * fast.summary["kv_transfers"]["mean_kv_transfer_ms"]
    assert slow.summary["mean_ttft_ms"] > fast.summary["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pools": [{"role": "prefill"}]}, "none has the role decode; add one"),
        ({"pools": [{}, {}]}, "decider is for pools that hand KV over"),
        ({"decider": "sometimes"}, "decider must be one of always, prefix_based, got 'sometimes'"),
        (
            {"decider": "prefix_based:non_cached_tokens=-1"},
            "non_cached_tokens must be an integer of at least 0, got -1",
        ),
        ({"transfer": {"bandwidth_gb_s": 0}}, "transfer.bandwidth_gb_s`? should be greater than or equal to 0.001"),
        ({"transfer": {"kv_lease_duration": 0}}, "transfer.kv_lease_duration`? should be greater than or equal to 1"),
        ({"transfer": {"kv_load_failure_policy": "retry"}}, "transfer.kv_load_failure_policy"),
        ({"prefill_router": "least"}, "router must be one of .*, got 'least'"),
    ],
)
def test_what_pools_that_hand_over_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SimError, match=sentence):
        fleet(fleet=HANDING_OVER | changes)


@pytest.mark.parametrize("seed", range(4))
def test_a_pool_has_the_prompts_of_any_of_its_replicas(seed: int) -> None:
    """Also where its first one computes none: one prompt goes to either of two."""
    pools = [{"name": "prompts", "role": "prefill", "replicas": 2}, {"name": "answers", "role": "decode"}]
    facts: dict[str, Any] = {
        "limit": 1,
        "seed": seed,
        "intervals": False,
        "fleet": {"router": "random", "pools": pools},
    }
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", **facts).summary
    assert [pool["arrived"] for pool in found["pools"]] == [1, 1]
    assert found["pools"][0]["total_input_tokens"] == found["total_input_tokens"]
