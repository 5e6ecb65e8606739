"""Several servers, each of several data-parallel ranks, behind a router."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.errors import ConfigError
from sim.search.entry import capacity, optimize
from sim.specs.notes import engine_notes
from sim.specs.serve_command import parse_serve_command, serve_command
from tests.test_ranks import DENSE, MOE, TRACE, served
from tests.workload.makers import make_trace

BURST = make_trace([0.02 * number for number in range(120)], prompt_tokens=[500] * 120, output_tokens=[50] * 120)


def ran(trace: Any = BURST, model: str = MOE, **arguments: Any) -> sim.Result:
    engine = arguments.pop("engine", None) or served(data_parallel_size=2, enable_expert_parallel=True)
    return sim.simulate(model, "h100-sxm", trace, engine=engine, intervals=False, **arguments)


def test_a_row_an_engine_with_its_server() -> None:
    """As many GPUs as engines have, at their price; steps of all servers, requests of each engine; a server's ranks end their steps together."""
    found = ran(replicas=3, router="round_robin")
    summary, steps = found.summary, found.steps
    assert summary["fleet"] == {"replicas": 6, "servers": 3, "router": "round_robin"}
    assert [row["server"] for row in summary["replicas"]] == [0, 0, 1, 1, 2, 2]
    assert sum(row["requests"] for row in summary["replicas"]) == 120
    of_server = found.requests["replica"] // 2
    assert of_server.tolist() == [0, 1, 2] * 40
    assert summary["gpu_hours"] == pytest.approx(6 * summary["duration"] / 3600)
    ends = {server: set(steps.loc[steps["replica"] // 2 == server, "end_s"]) for server in range(3)}
    for rank in range(6):
        own = steps.loc[steps["replica"] == rank]
        together = steps.loc[steps["replica"] == rank ^ 1]
        shared = own.merge(together, on="end_s")
        assert len(shared) > 0.5 * min(len(own), len(together))
    assert not ends[0] & ends[1]
    assert summary["num_lock_steps"] == sum(ranks.num_steps for ranks in found.run.ranks)
    assert len(found.run.ranks) == 3
    assert "3 servers of 2 engines of 1 x h100-sxm behind round_robin" in str(found)
    assert "replica  server  requests" in str(found)


@pytest.mark.parametrize("model", [MOE, DENSE])
@pytest.mark.parametrize("more", [{"replicas": 1}, {"replicas": 1, "router": "llm_d"}, {"router": "random"}])
def test_a_router_before_one_server_changes_nothing(model: str, more: dict[str, Any]) -> None:
    """The server's own balancer shares out what it is sent."""
    engine = served(data_parallel_size=4)
    alone, behind = (ran(model=model, engine=engine, **how) for how in ({}, more))
    pd.testing.assert_frame_equal(alone.requests, behind.requests, check_exact=True)
    pd.testing.assert_frame_equal(alone.steps, behind.steps, check_exact=True)
    untold = {"fleet", "arguments", "wall_time_s"}
    assert {key: value for key, value in alone.summary.items() if key not in untold} == {
        key: value for key, value in behind.summary.items() if key not in untold
    }
    assert alone.summary["fleet"] == {"replicas": 4, "router": "vllm_dp"}


def test_its_balancer_has_the_options_that_are_asked_for() -> None:
    sizes = [200 * (number % 7 + 1) for number in range(60)]
    uneven = make_trace([0.03 * number for number in range(60)], prompt_tokens=sizes, output_tokens=sizes)
    engine = served(data_parallel_size=4)
    asked, usual = (ran(uneven, engine=engine, router=name) for name in ("vllm_dp:api_servers=4", None))
    assert asked.summary["fleet"]["router"] == "vllm_dp:api_servers=4"
    assert asked.requests["replica"].tolist() != usual.requests["replica"].tolist()


def test_dense_servers_are_their_engines() -> None:
    """A request goes to a server, whose balancer knows its own engines alone."""
    found = ran(TRACE, DENSE, engine=served(data_parallel_size=2), replicas=2, router="round_robin")
    assert (found.requests["replica"] // 2).tolist() == [0, 1] * 20
    assert "num_lock_steps" not in found.summary
    halves = [sim.simulate(DENSE, "h100-sxm", TRACE.rows(np.arange(place, 40, 2)), engine=served(data_parallel_size=2), intervals=False) for place in (0, 1)]  # fmt: skip
    for place, half in enumerate(halves):
        assert half.requests["finish_s"].tolist() == found.requests["finish_s"][place::2].tolist()


def test_ranks_with_addresses_are_what_the_router_chooses() -> None:
    """And step with their server."""
    engine = served(data_parallel_size=2, enable_expert_parallel=True, data_parallel_external_lb=True)
    found = ran(engine=engine, replicas=2, router="round_robin")
    assert found.requests["replica"].tolist() == [0, 1, 2, 3] * 30
    assert [row["server"] for row in found.summary["replicas"]] == [0, 0, 1, 1]
    assert len(found.run.ranks) == 2
    one = ran(engine=engine)
    assert one.summary["fleet"] == {"replicas": 2, "router": "least_loaded"}


def test_llm_d_sees_the_first_engine_of_an_address() -> None:
    """Whatever the others hold: of a server whose first rank is idle it thinks nothing of the rest."""
    by_load = "llm_d:queue=0,kv=0,prefix=0,running=1"
    behind = ran(replicas=2, router=by_load)
    first, second = (sum(row["requests"] for row in behind.summary["replicas"] if row["server"] == server) for server in (0, 1))  # fmt: skip
    assert first + second == 120
    engine = served(data_parallel_size=2, enable_expert_parallel=True, data_parallel_external_lb=True)
    addressed = ran(engine=engine, replicas=2, router=by_load)
    assert addressed.requests["replica"].tolist() != behind.requests["replica"].tolist()


def test_pools_of_unlike_servers() -> None:
    """Ranks in lock step, ranks with addresses and an engine by itself behind one router: each pool has its own figures, all add up."""
    pools = [
        {"name": "two", "replicas": 2, "engine": {"data_parallel_size": 2, "enable_expert_parallel": True}},
        {"name": "big", "gpu": "h200-sxm", "engine": {"data_parallel_size": 3, "data_parallel_external_lb": True}},
        {"name": "lone", "engine": {"max_num_seqs": 64}},
    ]
    found = ran(engine=served(), fleet={"router": "least_loaded", "pools": pools})
    summary = found.summary
    assert summary["fleet"]["servers"] == 4
    assert [(pool["replicas"], pool.get("servers")) for pool in summary["pools"]] == [(4, 2), (3, 1), (1, None)]
    assert [row["server"] for row in summary["replicas"]] == [0, 0, 1, 1, 2, 2, 2, 3]
    assert sum(pool["arrived"] for pool in summary["pools"]) == 120
    assert sum(pool.get("num_lock_steps", 0) for pool in summary["pools"]) == summary["num_lock_steps"]
    assert found.fleet.num_gpus == 8
    text = (
        "2 servers of 2 engines of 1 x h100-sxm and 1 server of 3 engines of 1 x h200-sxm and 1 replica of 1 x h100-sxm"
    )
    assert text in str(found).replace("\n", " ")
    assert [pool["arrived"] > 0 for pool in summary["pools"]] == [True] * 3


def test_steps_are_logged_with_their_server() -> None:
    """Dummies as well; those of a server of one engine alike."""
    rows: list[dict[str, Any]] = []
    pools = [{"replicas": 2, "engine": {"data_parallel_size": 2}}, {}]
    found = ran(engine=served(), fleet={"router": "round_robin", "pools": pools}, step_log=rows.append)
    assert {(row["replica"], row["server"], row["rank"]) for row in rows} == {
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0)
    }  # fmt: skip
    in_step = [row for row in rows if "wave" in row]
    assert len(in_step) == 2 * found.summary["num_lock_steps"]


def test_limits_are_those_of_an_address() -> None:
    """A server's, or each rank's where it has one; who is turned away is told so, and no request is lost."""
    at_once = make_trace([0.0] * 20, prompt_tokens=[100] * 20, output_tokens=[20] * 20)
    limits = {"data_parallel_size": 2, "max_num_queued_reqs": 3}
    behind = ran(at_once, engine=served(**limits), replicas=2, router="round_robin")
    assert behind.summary["completed"] == 6
    addressed = ran(at_once, engine=served(**limits, data_parallel_external_lb=True), replicas=2, router="round_robin")
    assert addressed.summary["completed"] == 12
    assert set(behind.rejected.values()) == {"503: 3 requests were under way (max_num_queued_reqs)"}


def test_users_wait_for_servers() -> None:
    found = ran(users=16, replicas=2, router="least_loaded")
    assert found.summary["completed"] == 120
    assert found.requests["replica"].nunique() == 4


def test_results_are_written(tmp_path: Any) -> None:
    """Each file has the server of a replica, or its replica."""
    ran(replicas=2).write(tmp_path / "run")
    over_time = pd.read_csv(tmp_path / "run" / "replicas.csv")
    assert over_time.groupby("server")["replica"].unique().map(list).to_dict() == {0: [0, 1], 1: [2, 3]}


def test_capacity_counts_servers() -> None:
    """Two servers take about twice the rate of one, and as many GPUs; a rate is sized in servers."""
    asked: dict[str, Any] = {"engine": served(data_parallel_size=2), "slo": ["tpot_p99=10ms"], "intervals": False}
    one, two = (capacity(MOE, "h100-sxm", BURST, replicas=count, **asked).summary for count in (1, 2))
    assert [(found["replicas"], found["num_gpus"]) for found in (one, two)] == [(1, 2), (2, 4)]
    assert 1.5 < two["max_request_rate"] / one["max_request_rate"] < 2.5
    sized = capacity(MOE, "h100-sxm", BURST, rate=1.5 * one["max_request_rate"], **asked).summary["sizing"]
    assert (sized["replicas"], sized["num_gpus"]) == (2, 4)


def test_servers_and_ranks_are_a_choice() -> None:
    """Four GPUs are two servers of two ranks, among others."""
    space: dict[str, list[Any]] = {"data_parallel_size": [None, 2], "replicas": [1, 2]}
    found = optimize(MOE, "h100-sxm", TRACE, engine=served(), trials=40, space=space)
    tried = {
        (row["engine"].get("data_parallel_size", 1), row["replicas"], row["num_gpus"])
        for row in found.summary["candidates"]
    }
    assert {(2, 2, 4), (2, 1, 2), (1, 2, 2)} <= tried


def test_stages_of_ranks_are_a_choice() -> None:
    """Beside ranks and servers, and where they are a knob by themselves: with more GPUs than NVLink joins."""
    space: dict[str, list[Any]] = {
        "pipeline_parallel_size": [1, 2],
        "data_parallel_size": [None, 2],
        "replicas": [1, 2],
    }
    found = optimize(MOE, "h100-sxm", TRACE, engine=served(), trials=40, space=space)
    tried = {
        (row["engine"]["pipeline_parallel_size"], row["engine"].get("data_parallel_size", 1), row["replicas"])
        for row in found.summary["candidates"]
        if row["feasible"]
    }
    assert tried == set(product((1, 2), (1, 2), (1, 2)))


def test_capacity_of_ranks_with_stages() -> None:
    """A server of two ranks with two stages each is four GPUs."""
    engine = served(pipeline_parallel_size=2, data_parallel_size=2)
    found = capacity(MOE, "h100-sxm", BURST, engine=engine, slo=["tpot_p99=20ms"], intervals=False).summary
    assert (found["replicas"], found["num_gpus"]) == (1, 4)
    assert found["max_request_rate"] > 1


def test_a_line_of_vllm_serve_says_that_ranks_have_addresses() -> None:
    """By any of three flags; the line that starts all of a server has the one that does so."""
    engine = sim.EngineConfig(data_parallel_size=16, data_parallel_external_lb=True)
    lines = (
        "-dp 16 --data-parallel-external-lb",
        "-dp 16 -dpe --data-parallel-size-local 1 -dpn 3",
        "-dp 16 --data-parallel-rank 3",
        "-dp 16 --data-parallel-size-local 8 --data-parallel-multi-port-external-lb --data-parallel-start-rank 8",
    )
    for line in lines:
        assert parse_serve_command(f"vllm serve M {line}").engine == engine
    line = "vllm serve M --data-parallel-size 16 --data-parallel-multi-port-external-lb --data-parallel-size-local 16"
    assert serve_command("M", engine) == line
    assert parse_serve_command(line).engine == engine


NODES = {"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}


def test_nodes_with_addresses_are_what_the_router_chooses() -> None:
    """Each shares out what it is sent to its own ranks, which step with those of the other node."""
    engine = served(data_parallel_size=4, enable_expert_parallel=True, **NODES)
    found = ran(engine=engine, replicas=2, router="round_robin")
    assert (found.requests["replica"] // 2).tolist() == [0, 1, 2, 3] * 30
    assert found.summary["fleet"] == {"replicas": 8, "servers": 2, "addresses": 4, "router": "round_robin"}
    rows = found.summary["replicas"]
    assert [(row["server"], row["address"]) for row in rows] == [
        (0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 3), (1, 3)
    ]  # fmt: skip
    assert all(row["requests"] > 5 for row in rows)
    assert [ranks.num_ranks for ranks in found.run.ranks] == [4, 4]
    assert "replica  server  address  requests" in str(found)
    one = ran(engine=engine)
    assert one.summary["fleet"] == {"replicas": 4, "addresses": 2, "router": "least_loaded"}
    assert [row["address"] for row in one.summary["replicas"]] == [0, 0, 1, 1]


@pytest.mark.parametrize("router", ["round_robin", "llm_d"])
@pytest.mark.parametrize(("local", "other"), [(1, {"data_parallel_external_lb": True}), (4, {})])
def test_a_node_of_one_rank_or_of_all_is_another_way(local: int, other: dict[str, Any], router: str) -> None:
    """As vLLM takes them: an address a rank, and an address a server."""
    nodes = NODES | {"data_parallel_size_local": local}
    found, expected = (
        ran(engine=served(data_parallel_size=4, **engine), replicas=2, router=router) for engine in (nodes, other)
    )
    pd.testing.assert_frame_equal(found.requests, expected.requests, check_exact=True)
    pd.testing.assert_frame_equal(found.steps, expected.steps, check_exact=True)
    assert found.summary["fleet"] == expected.summary["fleet"]


def test_dense_nodes_are_servers() -> None:
    """Nothing ties the nodes of a dense model to each other."""
    nodes = ran(TRACE, DENSE, engine=served(data_parallel_size=4, **NODES), router="round_robin")
    servers = ran(TRACE, DENSE, engine=served(data_parallel_size=2), replicas=2, router="round_robin")
    pd.testing.assert_frame_equal(nodes.requests, servers.requests, check_exact=True)


def test_limits_are_those_of_a_node() -> None:
    at_once = make_trace([0.0] * 20, prompt_tokens=[100] * 20, output_tokens=[20] * 20)
    engine = served(data_parallel_size=4, max_num_queued_reqs=3, **NODES)
    assert ran(at_once, engine=engine, router="round_robin").summary["completed"] == 6


def test_pools_whose_servers_have_other_addresses() -> None:
    """Addresses are numbered through all pools."""
    pools = [
        {"name": "whole", "engine": {"data_parallel_size": 2}},
        {"name": "nodes", "engine": {"data_parallel_size": 4, **NODES}},
        {"name": "ranks", "engine": {"data_parallel_size": 2, "data_parallel_external_lb": True}},
    ]
    found = ran(engine=served(), fleet={"router": "round_robin", "pools": pools}).summary
    assert found["fleet"]["addresses"] == 5
    assert [row["address"] for row in found["replicas"]] == [0, 0, 1, 1, 2, 2, 3, 4]
    assert [pool["arrived"] for pool in found["pools"]] == [24, 48, 48]


def test_nodes_prefill_for_nodes() -> None:
    """Both routers choose nodes, whose balancers choose ranks."""
    pools = [{**pool, "engine": {"data_parallel_size": 4, **NODES}, "replicas": 1} for pool in ROLES]
    found = ran(engine=served(), fleet={"router": "round_robin", "pools": pools})
    assert found.summary["completed"] == 120
    assert (found.requests["prefill_replica"] // 2).tolist() == [0, 1] * 60
    assert (found.requests["replica"] // 2).tolist() == [2, 3] * 60
    assert found.requests["replica"].nunique() == found.requests["prefill_replica"].nunique() == 4


def test_how_many_ranks_are_behind_an_address_is_a_choice() -> None:
    """One, two or all four."""
    space: dict[str, list[Any]] = {"data_parallel_size_local": [1, 2, 4], "router": ["round_robin", "least_loaded"]}
    engine = served(data_parallel_size=4, **NODES)
    found = optimize(MOE, "h100-sxm", TRACE, engine=engine, trials=12, space=space).summary
    tried = {(row["engine"]["data_parallel_size_local"], row["feasible"]) for row in found["candidates"]}
    assert tried == {(1, True), (2, True), (4, True)}


def test_capacity_and_comparisons_of_nodes() -> None:
    engine = served(data_parallel_size=4, **NODES)
    found = capacity(MOE, "h100-sxm", BURST, engine=engine, slo=["tpot_p99=20ms"], intervals=False).summary
    assert (found["replicas"], found["num_gpus"]) == (1, 4)
    assert found["max_request_rate"] > 1
    compared = sim.compare(
        MOE, "h100-sxm", TRACE, engine=engine, routers=["round_robin", "llm_d"], intervals=False
    ).results
    assert [run.summary["fleet"]["addresses"] for run in compared.values()] == [2, 2]


def test_a_line_of_vllm_serve_says_that_nodes_have_addresses() -> None:
    """By its flag, or by a node's first rank; without API servers a node is one of a server with a single address."""
    engine = sim.EngineConfig(data_parallel_size=16, data_parallel_hybrid_lb=True, data_parallel_size_local=8)
    lines = (
        "-dp 16 --data-parallel-hybrid-lb --data-parallel-size-local 8",
        "-dp 16 -dph -dpl 8 -dpr 8",
        "-dp 16 -dpl 8 --data-parallel-start-rank 0",
        "-dp 16 -dpl 4 --data-parallel-start-rank 8 -dpl 8",
    )
    for line in lines:
        parsed = parse_serve_command(f"vllm serve M {line}")
        assert (parsed.engine, parsed.warnings) == (engine, ())
    line = "vllm serve M --data-parallel-size 16 --data-parallel-hybrid-lb --data-parallel-size-local 8"
    assert serve_command("M", engine) == line
    parsed = parse_serve_command("vllm serve M -dp 16 -dpl 8 -dpr 8 --headless")
    assert parsed.engine == sim.EngineConfig(data_parallel_size=16)
    assert parsed.warnings == ("-dpl, --headless and -dpr change nothing here.",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-dp 4 -dph", "data_parallel_hybrid_lb needs data_parallel_size_local, .* got none; add it"),
        ("-dp 4 -dph -dpl 3", "data_parallel_size_local must divide data_parallel_size, 4, .* got 3; choose another"),
        ("-dp 4 -dph -dpl 8", "data_parallel_size_local must divide data_parallel_size, 4, .* got 8; choose another"),
        ("-dp 4 -dph -dpl 0", "data_parallel_size_local must be an integer of at least 1, got 0"),
        ("-dp 4 -dph -dpl 2 -dpe", "got data_parallel_external_lb, which gives each rank one, as well; leave one"),
        ("-dp 4 -dph -dpl 2 --headless", "got --headless, which starts none; leave one of them out"),
        ("-dp 4 -dph -dpl two", "-dpl must be a whole number such as 8192, 8K or 1.5k, got 'two'"),
    ],
)
def test_nodes_that_vllm_does_not_start_are_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_serve_command(f"vllm serve M {line}")


def test_nodes_are_unknown_to_old_versions() -> None:
    with pytest.raises(ConfigError, match=r"data_parallel_hybrid_lb is unknown to vLLM 0.9.2, it exists since 0.10.0"):
        ran(engine=served(data_parallel_size=4, **NODES), vllm_version="0.9.2")


@pytest.mark.parametrize(
    ("local", "hybrid", "note"),
    [
        (2, False, "data_parallel_size_local changes nothing here: without data_parallel_hybrid_lb no node"),
        (4, True, "data_parallel_hybrid_lb changes nothing here: one node has all data-parallel ranks."),
        (1, True, "data_parallel_hybrid_lb is data_parallel_external_lb here, as vLLM takes it"),
    ],
)
def test_nodes_that_are_something_else_say_so(local: int, hybrid: bool, note: str) -> None:
    engine = sim.EngineConfig(data_parallel_size=4, data_parallel_hybrid_lb=hybrid, data_parallel_size_local=local)
    (found,) = engine_notes(engine, None)
    assert found.startswith(note)


ROLES: tuple[dict[str, Any], ...] = (
    {"name": "prompts", "role": "prefill", "replicas": 1, "engine": {"data_parallel_size": 2}},
    {"name": "answers", "role": "decode", "replicas": 2, "engine": {"data_parallel_size": 3}},
)


def handing_over(model: str = MOE, **engine: Any) -> sim.Result:
    pools = [{**pool, "engine": {**pool["engine"], **engine}} for pool in ROLES]
    return ran(model=model, engine=served(), fleet={"router": "round_robin", "pools": pools})


@pytest.mark.parametrize("engine", [{"enable_expert_parallel": True}, {}])
def test_servers_that_prefill_for_servers(engine: dict[str, Any]) -> None:
    """Requests alternate between the servers that answer, whose balancers choose ranks; each prompt's KV goes from the rank that computed it, by its own port."""
    found = handing_over(**engine)
    summary, requests = found.summary, found.requests
    assert summary["completed"] == 120
    assert summary["fleet"]["servers"] == 3
    assert [row["server"] for row in summary["replicas"]] == [0, 0, 1, 1, 1, 2, 2, 2]
    assert ((requests["replica"] - 2) // 3).tolist() == [0, 1] * 60
    assert set(requests["replica"]) == {2, 3, 4, 5, 6, 7}
    assert set(requests["prefill_replica"]) == {0, 1}
    links = {(link["replica"], link["direction"]) for link in summary["kv_transfers"]["links"]}
    assert links == {(0, "out"), (1, "out"), *((rank, "in") for rank in range(2, 8))}
    assert len(found.run.ranks) == 3
    of_pools = [(pool["servers"], pool["replicas"], pool["num_lock_steps"] > 0) for pool in summary["pools"]]
    assert of_pools == [(1, 2, True), (2, 6, True)]
    assert sum(pool["num_lock_steps"] for pool in summary["pools"]) == summary["num_lock_steps"]


def test_ranks_with_addresses_prefill_for_ranks_with_addresses() -> None:
    """As in llm-d's wide expert parallelism: both routers choose ranks."""
    found = handing_over(enable_expert_parallel=True, data_parallel_external_lb=True)
    assert found.requests["replica"].tolist() == [2, 3, 4, 5, 6, 7] * 20
    assert found.requests["prefill_replica"].tolist() == [0, 1] * 60


def test_independent_engines_of_servers_hand_kv_over() -> None:
    found = handing_over(DENSE)
    assert found.summary["completed"] == 120
    assert found.run.ranks == ()
    assert ((found.requests["replica"] - 2) // 3).tolist() == [0, 1] * 60


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (
            {"enable_prefix_caching": False},
            "prompts: kv_offloading_size in pools with a role is simulated with prefix caching",
        ),
        (
            {"data_parallel_size": 2, "enable_expert_parallel": True},
            "prompts: kv_offloading_size is simulated in pools with a role for engines that step alone",
        ),
    ],
)
def test_a_cpu_tier_beside_a_role_says_what_it_needs(engine: dict[str, Any], why: str) -> None:
    prompts = {"name": "prompts", "role": "prefill", "engine": {"kv_offloading_size": 4, **engine}}
    with pytest.raises(ConfigError, match=why):
        sim.simulate(
            "Qwen3-30B-A3B",
            "h100-sxm",
            "chat",
            limit=1,
            fleet={"pools": [prompts, {"name": "answers", "role": "decode"}]},
        )


@pytest.mark.parametrize("model", [MOE, DENSE])
def test_a_server_that_prefills_is_lost_with_all_its_ranks(model: str) -> None:
    """And so is what they computed; while it is away the servers that answer compute prompts themselves."""
    fleet = {
        "router": "round_robin",
        "pools": [*ROLES],
        "faults": [{"replica": 0, "at_s": 2.0, "for_s": 1.0}],
        "start_up": 2,
    }
    trace = make_trace([0.05 * row for row in range(120)], prompt_tokens=[600] * 120, output_tokens=[20] * 120)
    found = ran(trace, model, engine=served(), fleet=fleet)
    replicas, handed_over = found.summary["replicas"], found.requests["prefill_replica"] >= 0
    assert found.summary["completed"] == 120
    assert [row["lives"][0]["lost_s"] for row in replicas] == [[2.0]] * 2 + [[]] * 6
    is_away = found.requests["arrival_s"].between(2.0, 5.0)
    assert not handed_over[is_away].any()
    assert handed_over[found.requests["arrival_s"] > 5.0].all()
    assert {link["replica"] for link in found.summary["kv_transfers"]["links"] if link["bytes"]} == set(range(8))


def test_beside_roles_a_server_keeps_its_limits() -> None:
    """It serves requests whole; of twenty that come to it at once it takes two in."""
    pools = [{"role": "prefill"}, {"role": "decode"}, {"name": "whole", "engine": {"max_num_queued_reqs": 2}}]
    at_once = make_trace([0.0] * 40, prompt_tokens=[300] * 40, output_tokens=[20] * 40)
    found = ran(at_once, DENSE, engine=served(), fleet={"router": "round_robin", "pools": pools})
    assert found.summary["completed"] == 22
    assert set(found.rejected.values()) == {"503: 2 requests were under way (max_num_queued_reqs)"}


def test_a_ratio_of_servers_is_searched() -> None:
    """Two GPUs a prefill server, one or two a server that answers."""
    fleet = {"router": "round_robin", "pools": [*ROLES]}
    space: dict[str, list[Any]] = {"prompts.replicas": [1, 2], "answers.data_parallel_size": [None, 2]}
    best = optimize(MOE, "h100-sxm", TRACE, engine=served(), trials=8, space=space, fleet=fleet).summary
    assert {row["num_gpus"] for row in best["candidates"]} == {2 + 2, 2 + 2 * 2, 4 + 2, 4 + 2 * 2}


EXTERNAL = {"data_parallel_external_lb": True}


@pytest.mark.parametrize(
    ("model", "arguments", "more", "message"),
    [
        (
            MOE,
            {},
            {"replicas": 2, "router": "vllm_dp"},
            "router vllm_dp is what shares out requests within each server",
        ),
        (MOE, EXTERNAL, {"router": "vllm_dp"}, "router vllm_dp is what shares out requests within each server"),
        (
            MOE,
            {"data_parallel_size": 4, **NODES},
            {"router": "vllm_dp"},
            "router vllm_dp is what shares out requests within each server",
        ),
        (DENSE, EXTERNAL, {}, "data_parallel_external_lb is for models with experts, .* 2 times as many replicas"),
        (DENSE, {}, {"replicas": 2, "kv_pull": ""}, "kv_pull with data_parallel_size is simulated for the independent"),
        (DENSE, {}, {"replicas": 2, "router": "random", "jobs": 2}, "are engines of one server, depend on each other"),
        (
            DENSE,
            {"data_parallel_size": 4, **NODES},
            {"stream": True},
            "engines of several servers or addresses, or step together, are not simulated so",
        ),
        (
            DENSE,
            {},
            {"replicas": 2, "stream": True},
            "engines of several servers or addresses, or step together, are not simulated so",
        ),
        (
            MOE,
            {},
            {"fleet": {"pools": [{"replicas": 2}], "faults": [{"replica": 2, "at_s": 9.0}]}},
            r"faults\[0\]: replica must be from 0 to 1, got 2",
        ),
        (
            MOE,
            {"pipeline_parallel_size": 2},
            {"fleet": {"faults": [{"replica": 0, "at_s": 9.0}]}},
            "pipeline_parallel_size 2 of ranks that step together is simulated for fleets that stay as they are",
        ),
        (
            MOE,
            {},
            {"fleet": {"faults": [{"replica": 0, "at_s": 9.0}]}, "router": "vllm_dp"},
            "router vllm_dp is what shares out requests within each server",
        ),
        (
            MOE,
            {},
            {"fleet": {"pools": [*ROLES], "prefill_router": "vllm_dp"}},
            "router vllm_dp is what shares out requests within each server",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(
    model: str, arguments: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    engine = served(**{"data_parallel_size": 2} | arguments)
    with pytest.raises(ConfigError, match=message):
        sim.simulate(model, "h100-sxm", TRACE, engine=engine, intervals=False, **more)


def test_an_address_for_the_only_rank_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="gives each data-parallel rank an address, got data_parallel_size 1"):
        sim.EngineConfig(data_parallel_external_lb=True)
