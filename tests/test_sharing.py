"""Fleets whose replicas share KV: how they are asked for, what they report, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.memory.transfers import ReplicaKV
from sim.search.blueprint import Blueprint
from sim.specs.fleet_file import read_fleet

SMALL = sim.EngineConfig(num_gpu_blocks_override=600, max_model_len=8192)
STORE = {"capacity_gib": 8, "bandwidth_gb_s": 25}


def simulated(**more: Any) -> sim.Result:
    """Four replicas that take turns, so that a session's next turn is elsewhere."""
    given: dict[str, Any] = {"limit": 80, "rate_scale": 2, "router": "round_robin", "intervals": False, "engine": SMALL}
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "multi-turn", **given | more)


def test_a_store_in_a_file_is_that_of_the_flag() -> None:
    """Options as text, as a mapping, in a fleet file or beside it."""
    by_flag = simulated(replicas=4, kv_store="capacity_gib=8,bandwidth_gb_s=25").summary
    in_file = simulated(fleet={"pools": [{"replicas": 4}], "kv_store": STORE}).summary
    beside = simulated(fleet={"pools": [{"replicas": 4}]}, kv_store=STORE).summary
    assert by_flag["kv_store"] == in_file["kv_store"] == beside["kv_store"]
    assert by_flag["mean_ttft_ms"] == in_file["mean_ttft_ms"] == beside["mean_ttft_ms"]


def test_what_comes_from_a_store() -> None:
    """Loads in the summary are those of the requests; the store's own link carries all of them, and what is stored comes once."""
    result = simulated(replicas=4, kv_store=STORE)
    store, requests = result.summary["kv_store"], result.requests
    own = {link["direction"]: link["bytes"] for link in store["links"] if link["replica"] is None}
    assert store["num_loads"] > 0
    assert requests["num_loaded_tokens"].sum() == store["loaded_tokens"]
    assert own == {"out": store["loaded_bytes"], "in": store["stored_bytes"]}
    assert store["capacity_bytes"] == 8 * 2**30
    assert 0 < store["max_usage"] <= 1
    assert "kv_offload" not in result.summary
    assert "External prefix cache hit rate" in str(result)


def test_a_store_spares_prompts() -> None:
    """With room for everything, what was computed once is computed nowhere again but for parts of chunks."""
    without, with_store = simulated(replicas=4).summary, simulated(replicas=4, kv_store={}).summary
    hits = with_store["kv_store"]["external_prefix_cache_hit_rate"] + with_store["prefix_cache_hit_rate"]
    assert hits > without["prefix_cache_hit_rate"] + 0.05
    assert with_store["kv_store"]["num_evictions"] == 0


def test_pulls_beside_a_tier() -> None:
    """Both figures are told, and each request's tokens are of one or the other."""
    engine = replace(SMALL, kv_offloading_size=20)
    result = simulated(replicas=3, router="random", kv_pull={"via": "host"}, engine=engine, limit=200)
    requests, tier, pulls = result.requests, result.summary["kv_offload"], result.summary["kv_pulls"]
    assert tier["loaded_tokens"] == requests["num_loaded_tokens"].sum() > 0
    assert pulls["pulled_tokens"] == requests["num_pulled_tokens"].sum() > 0
    together = tier["external_prefix_cache_hit_rate"] + pulls["external_prefix_cache_hit_rate"]
    assert f"External prefix cache hit rate (%):      {100 * together:.2f}" in str(result)
    assert not (
        (requests["num_loaded_tokens"] > 0) & (requests["pulled_from"] >= 0) & (requests["num_preemptions"] == 0)
    ).any()


def test_pulls_come_from_others() -> None:
    """Of at least so many tokens, in whole blocks, never from oneself."""
    result = simulated(replicas=4, kv_pull={"kv_recompute_threshold": 200})
    pulled = result.requests[result.requests["pulled_from"] >= 0]
    assert len(pulled) == result.summary["kv_pulls"]["requests"] > 0
    assert (pulled["pulled_from"] != pulled["replica"]).all()
    assert (pulled["num_pulled_tokens"] >= 200).all()
    assert pulled["num_pulled_tokens"].sum() == result.summary["kv_pulls"]["pulled_tokens"]


def test_host_memory_takes_fewer_descriptors_and_one_more_copy() -> None:
    """So a pull over it is sooner there with descriptors of 13 us, and later with none."""
    threshold = {"kv_recompute_threshold": 200}
    times_ms = {
        (via, descriptor_us): simulated(
            fleet={
                "pools": [{"replicas": 4}],
                "kv_pull": threshold | {"via": via},
                "transfer": {"descriptor_us": descriptor_us},
            }
        ).summary["kv_pulls"]["mean_kv_pull_ms"]
        for via in ("gpu", "host")
        for descriptor_us in (0, 13)
    }
    assert times_ms["host", 13] < times_ms["gpu", 13]
    assert times_ms["host", 0] > times_ms["gpu", 0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"kv_store": "capacity_gb=8"},
            "kv_store has no option 'capacity_gb': its options are .* Did you mean capacity_gib",
        ),
        ({"kv_store": "capacity_gib"}, "options of kv_store must be written name=value"),
        ({"kv_store": {"capacity_gib": 0.01}}, "kv_store: capacity_gib 0.01 holds no chunk of 256 tokens; raise it"),
        ({"kv_store": {"chunk_tokens": 100}}, "chunk_tokens must be a multiple of block_size, 16, got 100"),
        ({"kv_store": {}, "kv_pull": {}}, "kv_store and kv_pull are simulated one at a time"),
        ({"kv_pull": {"via": "disk"}}, "kv_pull: via must be one of gpu, host, got 'disk'"),
        (
            {"kv_pull": {"kv_recompute_threshold": -1}},
            "kv_recompute_threshold must be an integer of at least 0, got -1",
        ),
    ],
)
def test_options_are_checked(more: dict[str, Any], message: str) -> None:
    """By name and rule."""
    with pytest.raises(ConfigError, match=message):
        simulated(replicas=2, **more)


@pytest.mark.parametrize("what", ["kv_store", "kv_pull"])
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"pipeline_parallel_size": 2}, "is not simulated with pipeline_parallel_size"),
        ({"preemption_mode": "swap"}, "is not simulated with preemption_mode swap"),
        ({"enable_prefix_caching": False}, "shares cached prefixes, and enable_prefix_caching is off"),
    ],
)
def test_engines_that_cannot_share_are_refused(what: str, engine: dict[str, Any], message: str) -> None:
    """With what would have to go."""
    with pytest.raises(ConfigError, match=f"{what} {message}"):
        simulated(fleet={"pools": [{"replicas": 2, "engine": engine}], what: {}})


def test_a_store_beside_a_tier() -> None:
    """What its own host has a replica loads from there, the rest from the store, which so moves less; a request's tokens are those of both."""
    alone = simulated(replicas=4, kv_store=STORE).summary["kv_store"]
    result = simulated(replicas=4, kv_store=STORE, engine=replace(SMALL, kv_offloading_size=20))
    tier, store = result.summary["kv_offload"], result.summary["kv_store"]
    assert tier["loaded_tokens"] > 0
    assert 0 < store["loaded_bytes"] < alone["loaded_bytes"]
    assert result.requests["num_loaded_tokens"].sum() == tier["loaded_tokens"] + store["loaded_tokens"]
    together = tier["external_prefix_cache_hit_rate"] + store["external_prefix_cache_hit_rate"]
    assert f"External prefix cache hit rate (%):      {100 * together:.2f}" in str(result)


def test_unlike_gpus_share_a_store() -> None:
    """What one pool has computed the other loads; they have the same KV."""
    pools = [{"name": "old", "replicas": 2}, {"name": "new", "replicas": 2, "gpu": "h200-sxm"}]
    result = simulated(fleet={"pools": pools, "kv_store": STORE})
    alone = [simulated(fleet={"pools": [pools[0] | {"replicas": count}], "kv_store": STORE}) for count in (1, 4)]
    hits = [one.summary["kv_store"]["external_prefix_cache_hit_rate"] for one in (*alone, result)]
    assert hits[0] < hits[2] == pytest.approx(hits[1], abs=0.02)
    assert {link["replica"] for link in result.summary["kv_store"]["links"]} == {0, 1, 2, 3, None}


def test_gpus_of_another_number_pull_from_each_other() -> None:
    """A receiver of one GPU reads from two, each of which has half of the heads: twice the descriptors a byte."""
    pools = [{"replicas": 2}, {"replicas": 2, "engine": {"tensor_parallel_size": 2}}]
    result = simulated(fleet={"pools": pools, "kv_pull": {}})
    requests = result.requests
    pulled = requests[requests["pulled_from"] >= 0]
    across = set(zip(pulled["pulled_from"].to_numpy() < 2, pulled["replica"].to_numpy() < 2, strict=True))
    assert {(True, False), (False, True)} <= across


@pytest.mark.parametrize(
    ("what", "engine", "message"),
    [
        ("kv_store", {"tensor_parallel_size": 2}, "got tensor_parallel_size 2 in wide and 1 in first"),
        ("kv_store", {"kv_cache_dtype": "fp8"}, "got kv_cache_dtype fp8 in wide and auto in first"),
        ("kv_pull", {"block_size": 32}, "got block_size 32 in wide and 16 in first"),
    ],
)
def test_pools_that_keep_kv_otherwise_share_none(what: str, engine: dict[str, Any], message: str) -> None:
    """With what to do."""
    pools = [{"name": "first", "replicas": 1}, {"name": "wide", "replicas": 1, "engine": engine}]
    with pytest.raises(
        ConfigError, match=f"fleet: {what} is for pools that keep KV alike, {message}; give both the same"
    ):
        simulated(fleet={"pools": pools, what: {}})


WITH_ROLES = [{"replicas": 2, "role": "prefill"}, {"replicas": 2, "role": "decode"}]


def test_pools_with_roles_do_not_pull() -> None:
    """They hand KV over."""
    with pytest.raises(ConfigError, match="fleet: kv_pull is simulated for replicas that serve requests whole"):
        simulated(fleet={"pools": WITH_ROLES, "kv_pull": {}})


def test_pools_with_roles_share_a_store() -> None:
    """Who prefills has its prompts from there and stores them; who decodes stores what it answers, if that is asked for, and is handed the rest."""
    prompts, answers = (
        simulated(fleet={"pools": WITH_ROLES, "kv_store": STORE | {"save_decode_cache": saves}}).summary
        for saves in (False, True)
    )
    into = {link["replica"] for link in prompts["kv_store"]["links"] if link["direction"] == "in"}
    assert into == {0, 1, 2, 3, None}  # what is handed over comes by the same cards
    assert {link["replica"] for link in prompts["kv_store"]["links"] if link["direction"] == "out"} == {0, 1, None}
    assert {link["replica"] for link in answers["kv_store"]["links"] if link["direction"] == "out"} == {
        0,
        1,
        2,
        3,
        None,
    }
    assert None not in {link["replica"] for link in prompts["kv_transfers"]["links"]}
    assert answers["kv_store"]["loaded_tokens"] > 1.5 * prompts["kv_store"]["loaded_tokens"] > 0
    assert answers["kv_store"]["stored_bytes"] > prompts["kv_store"]["stored_bytes"]


def test_a_store_outlives_who_prefills_and_who_decodes() -> None:
    """Replicas of both roles are lost, and every request is answered in the end."""
    faults = [{"at_s": 20, "replica": 0, "for_s": 30}, {"at_s": 30, "replica": 2, "for_s": 20}]
    changes = {"faults": faults, "recovery": {"retries": 5}}
    found = simulated(fleet={"pools": WITH_ROLES, "kv_store": STORE | {"save_decode_cache": True}} | changes).summary
    assert found["completed"] == 80
    assert found["kv_store"]["num_loads"] > 0


def test_answers_are_stored_if_asked_for() -> None:
    """Next turns, which begin with the answers, find these there as well."""
    prompts, answers = (simulated(replicas=4, kv_store=STORE | {"save_decode_cache": saves}) for saves in (False, True))
    hits = [one.summary["kv_store"]["external_prefix_cache_hit_rate"] for one in (prompts, answers)]
    assert hits[1] > 1.5 * hits[0]


def test_a_store_is_there_when_replicas_come_back() -> None:
    """After the only replica is lost, all that conversations had is loaded, where it was computed."""
    lost = {"pools": [{"replicas": 1}], "faults": [{"at_s": 20, "replica": 0, "for_s": 1}], "start_up": 5}
    tokens = {}
    for what, more in (("nothing", {}), ("store", {"kv_store": STORE})):
        result = simulated(fleet=lost | more, router=None)
        assert result.summary["completed"] == 80
        tokens[what] = result.requests["num_cached_tokens"].sum()
    assert tokens["store"] > 1.1 * tokens["nothing"]


@pytest.mark.parametrize(("model", "size"), [("gpt-oss-20b", 16), ("Qwen3.5-4B", 576)])
def test_windows_and_states_are_stored_by_the_block(model: str, size: int) -> None:
    """Of each KV group; a session's next turn finds them elsewhere."""
    given: dict[str, Any] = {"replicas": 2, "router": "round_robin", "limit": 80, "intervals": False}
    result = sim.simulate(model, "h100-sxm", "multi-turn", kv_store={}, **given)
    store, deployment = result.summary["kv_store"], result.fleet.first
    assert deployment.plan.block_size == size
    assert store["capacity_bytes"] % ReplicaKV(deployment.plan.kv_groups, 1).bytes_per_block == 0
    assert store["loaded_tokens"] == result.requests["num_loaded_tokens"].sum() > 0
    assert (result.requests["num_loaded_tokens"] % size == 0).all()
    alone = sim.simulate(model, "h100-sxm", "multi-turn", **given)
    assert result.requests["num_cached_tokens"].sum() > alone.requests["num_cached_tokens"].sum()


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (
            "gpt-oss-20b",
            {"kv_store": {"chunk_tokens": 256}},
            "of models with sliding windows or states a chunk is a block",
        ),
        ("Qwen3.5-4B", {"vllm_version": "0.28.0"}, "since vLLM 0.29, got 0.28.0; leave it out, or ask for a newer"),
    ],
)
def test_stores_of_windows_and_states_are_refused_where_vllm_has_none(
    model: str, more: dict[str, Any], message: str
) -> None:
    """By the rule that says so."""
    given: dict[str, Any] = {"kv_store": {}, "replicas": 2, "limit": 2} | more
    with pytest.raises(ConfigError, match=message):
        sim.simulate(model, "h100-sxm", "multi-turn", **given)


def test_answers_of_windows_are_not_stored() -> None:
    with pytest.raises(ConfigError, match="save_decode_cache is simulated for full attention alone"):
        sim.simulate("gpt-oss-20b", "h100-sxm", "multi-turn", replicas=2, kv_store={"save_decode_cache": True}, limit=2)


def test_engines_of_one_server_share_a_store() -> None:
    """As replicas do, behind the server's balancer."""
    engine = replace(SMALL, data_parallel_size=2)
    result = simulated(kv_store=STORE, engine=engine, router=None)
    assert result.summary["kv_store"]["num_loads"] > 0
    assert set(result.requests["replica"]) == {0, 1}


def test_engines_of_several_servers_share_a_store() -> None:
    """Each behind its server's balancer; turns find what any engine of either has stored."""
    engine = replace(SMALL, data_parallel_size=2)
    result = simulated(kv_store=STORE, engine=engine, router="round_robin", replicas=2)
    assert result.summary["kv_store"]["num_loads"] > 0
    assert set(result.requests["replica"]) == {0, 1, 2, 3}


def test_a_lookup_of_one_rank_holds_all_of_its_server_up() -> None:
    """Those of experts step together: who decodes on another rank waits as well, unless lookups are answered beside the passes."""
    engine = replace(SMALL, data_parallel_size=2, enable_expert_parallel=True)

    def tpot_ms(**store: Any) -> float:
        asked = STORE | {"lookup_ms": 50} | store
        found = sim.simulate(
            "Qwen3-30B-A3B", "h100-sxm", "multi-turn", limit=60, rate_scale=2, replicas=2, router="round_robin",
            engine=engine, kv_store=asked, intervals=False,
        )  # fmt: skip
        assert found.summary["kv_store"]["num_loads"] > 0
        return float(found.summary["mean_tpot_ms"])

    assert tpot_ms() > 1.02 * tpot_ms(lookup="async")


@pytest.mark.parametrize(
    ("shared", "fleet", "sentence"),
    [
        (
            {"kv_store": {}},
            {"start_up": 5},
            "kv_store with data_parallel_size is simulated for fleets that stay as they are",
        ),
        (
            {"kv_pull": {}},
            {"start_up": 5},
            "kv_pull with data_parallel_size is simulated for fleets that stay as they are",
        ),
        (
            {"kv_pull": {}},
            {"pools": [{"replicas": 2}]},
            "kv_pull with data_parallel_size is simulated for the independent",
        ),
    ],
)
def test_engines_of_servers_that_share_nothing(shared: dict[str, Any], fleet: dict[str, Any], sentence: str) -> None:
    """Those that come and go; and nobody pulls from another server's."""
    with pytest.raises(ConfigError, match=sentence):
        simulated(fleet=fleet | shared, engine=replace(SMALL, data_parallel_size=2))


def test_said_twice_is_refused() -> None:
    """In the file and beside it."""
    with pytest.raises(ConfigError, match="kv_pull is asked for, and the fleet file says how KV is shared"):
        simulated(fleet={"pools": [{"replicas": 2}], "kv_store": {}}, kv_pull={})


def test_a_store_is_a_knob() -> None:
    """Of a search over a fleet, with its options as text."""
    made = Blueprint(fleet=read_fleet({"pools": [{"name": "all", "replicas": 2}]}))
    made.check_knob("kv_store", ["capacity_gib=8", "capacity_gib=64"])
    assert made.fleet_file({"kv_store": "capacity_gib=8"}).kv_store == "capacity_gib=8"
    with pytest.raises(ConfigError, match="kv_store must be text such as capacity_gib=64, or null, got 8"):
        made.check_knob("kv_store", [8])
    with pytest.raises(ConfigError, match=r"kv_store: capacity_gib must be a number of at least 0\.001, got -1"):
        made.check_knob("kv_store", ["capacity_gib=-1"])
