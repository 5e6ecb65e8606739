"""Requests that ask for several answers, which the engines have as so many requests with one prompt."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sim
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.records import RequestRecords
from sim.errors import ConfigError
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.cluster.test_changes_agree import assert_all_ended_once, dynamics
from tests.cluster.test_changes_agree import assert_same_run as assert_same_change
from tests.cluster.test_clusters_agree import closed_loops, gaps, panel_bits, routers
from tests.cluster.test_queue_limits import limits
from tests.configs import changed
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.properties import engine_examples as examples
from tests.reference.cluster import Served, simulate_cluster
from tests.reference.managed import Pool, simulate_changing
from tests.workloads import configs, conversations, step_times, traces

A_STEP = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)
ENGINE = {
    "async_scheduling",
    "max_num_seqs",
    "data_parallel_size",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
}


def without_sessions(trace: Trace) -> Trace:
    """Prompts whose hashed blocks, if they have any, say all that is shared."""
    return replace(trace, session_id=None)


prompts = st.one_of(conversations(), conversations().map(without_sessions), traces(sharing=False))


def with_n(trace: Trace, data: st.DataObject) -> Trace:
    counts = st.lists(st.sampled_from((1, 1, 2, 3, 5)), min_size=len(trace), max_size=len(trace))
    return replace(trace, n=np.array(data.draw(counts), dtype=np.int64))


@examples(400)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=st.one_of(st.just({}), limits),
    num_replicas=st.integers(1, 3),
    router=routers,
    panel_bits=panel_bits,
)
def test_answers_are_what_a_naive_cluster_makes_of_them(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_replicas: int,
    router: str,
    panel_bits: tuple[int, ...],
) -> None:
    """Open and closed loops, any router, with or without limits of the queue: who has which answer, every step, and the requests put together."""
    config = changed(data.draw(configs(trace)), **limits)
    trace, clients = data.draw(closed_loops(with_n(trace, data)))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        try:
            found = simulate(trace, FleetPlan.alike(config, Telling(step_time), num_replicas, router), clients=clients)
        except ConfigError as error:  # the naive engines would go on for ever, as vLLM
            assume("preempt each other for ever" not in str(error))
            raise
    naive = simulate_cluster(
        trace, config, Telling(step_time), num_replicas=num_replicas, router=router, clients=clients
    )
    assert_same_answers(found, naive, trace)


def assert_same_answers(found: ClusterRecords, naive: Served, trace: Trace) -> None:
    answers, rows = naive.replicas[0].requests, list(rows_of_answers(trace))
    requests = found.merged.requests
    assert found.replica.tolist() == naive.replica[: len(trace)]
    for row, of_it in enumerate(rows):
        assert requests.rejected.get(row) == answers.rejected.get(row)
        assert requests.arrival_s[row] == answers.arrival_s[row]
        assert requests.num_cached_tokens[row] == answers.num_cached_tokens[row]
        for name in ("output_tokens", "generated_tokens", "num_preemptions"):
            assert getattr(requests, name)[row] == sum(getattr(answers, name)[answer] for answer in of_it), name
        if row not in answers.rejected:
            assert requests.first_scheduled_s[row] == min(answers.first_scheduled_s[answer] for answer in of_it)
            assert requests.first_token_s[row] == min(answers.first_token_s[answer] for answer in of_it)
            assert requests.finish_s[row] == max(answers.finish_s[answer] for answer in of_it)
    for mine, theirs in zip(found.replicas, naive.replicas, strict=True):
        assert_same_steps(mine, theirs)
        assert gaps(mine) == gaps(theirs)
        assert (mine.prefix_cache_queries, mine.prefix_cache_hits) == (
            theirs.prefix_cache_queries,
            theirs.prefix_cache_hits,
        )
    assert_each_replica_has_its_share(found, answers, naive, rows)


def assert_each_replica_has_its_share(
    found: ClusterRecords, answers: RequestRecords, naive: Served, rows: list[list[int]]
) -> None:
    """Requests once for each replica that served any of their answers."""
    for number in range(len(found.replicas)):
        requests, replica = found.served(number)
        here = [[answer for answer in of_it if naive.replica[answer] == number] for of_it in rows]
        tokens = [sum(int(answers.generated_tokens[answer]) for answer in of_it) for of_it in here if of_it]
        assert requests.generated_tokens[replica == number].tolist() == tokens


def rows_of_answers(trace: Trace) -> Iterator[list[int]]:
    """Of each request: its own row, and those behind all requests."""
    behind = len(trace)
    for row, n in enumerate([1] * len(trace) if trace.n is None else trace.n.tolist()):
        yield [row, *range(behind, behind + n - 1)]
        behind += n - 1


@examples(100)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=st.one_of(st.just({}), limits),
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(("least_loaded", "round_robin", "power_of_two")),
    changes=dynamics(),
    users=st.sampled_from((None, Users(3, 1.0))),
)
def test_several_answers_are_one_errand(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_replicas: int,
    router: str,
    changes: Dynamics,
    users: Users | None,
) -> None:
    """One replica has them all, and they are lost, aborted, refused and tried again together."""
    trace, config = with_n(trace, data), changed(data.draw(configs(trace)), **limits)
    told, clients = Telling(step_time), Clients(users)
    plan = FleetPlan.alike(config, told, num_replicas, router, dynamics=changes, start_up_s=3.0)
    try:
        found = simulate(trace, plan, clients=clients)
    except ConfigError as error:  # the naive engines would go on for ever, as vLLM
        assume("preempt each other for ever" not in str(error))
        raise
    pools = [Pool(told, num_replicas, 3.0)]
    expected = simulate_changing(trace, config, pools, router=router, dynamics=changes, clients=clients)
    assert_same_change(found, expected)
    assert_all_ended_once(found)


@pytest.mark.parametrize(("n", "most_ms"), [(1, 510), (2, 710)])
def test_several_answers_begin_again_where_one_resumes(n: int, most_ms: float) -> None:
    """Lost after 0.2 s, 20 steps: one answer has 30 to go, two have all 50."""
    fleet = {
        "pools": [{"replicas": 2}],
        "faults": [{"at_s": 0.2, "replica": 0}],
        "recovery": {"lost": "resume", "backoff_s": 0},
    }
    (row,) = run({"prompt_tokens": [100], "output_tokens": [50], "n": [n]}, fleet=fleet).requests.to_dict("records")
    assert (row["replica"], row["generated_tokens"]) == (1, 50 * n)
    assert most_ms - 11 < row["e2el_ms"] <= most_ms


def test_a_prompt_is_computed_once_for_all_its_answers() -> None:
    """All but the 8 tokens that fill no block, and those each time: 1,000 + 3 x 8 in the first step; then four decodes."""
    found = run({"prompt_tokens": [1000], "output_tokens": [50], "n": [4]}, async_scheduling=False)
    assert found.steps["num_chunk_tokens"].tolist() == [1024] + [0] * 49
    assert found.steps["num_decodes"].tolist() == [0] + [4] * 49
    assert found.summary["prefix_cache_hit_rate"] == 3 * 992 / 4000
    (row,) = found.requests.to_dict("records")
    assert (row["n"], row["prompt_tokens"], row["output_tokens"], row["generated_tokens"]) == (4, 1000, 200, 200)
    assert (row["ttft_ms"], row["e2el_ms"]) == (pytest.approx(10), pytest.approx(500))
    assert row["tpot_ms"] == pytest.approx(490 / 199)  # of all its tokens, as vllm bench serve has it
    assert found.summary["mean_itl_ms"] == pytest.approx(10)  # of each answer, as vLLM has it
    assert (found.summary["completed"], found.summary["total_input_tokens"], found.summary["total_output_tokens"]) == (
        1,
        1000,
        200,
    )


def test_a_session_goes_on_from_an_answer() -> None:
    """What the next turn repeats of it is cached as if there were no other, and the turn waits for all of them."""
    turns = {"arrival_s": [0.0, 0.0], "prompt_tokens": [160, 480], "output_tokens": [160, 16], "session_id": ["a"] * 2}
    alone, several = (run(turns | {"n": [n, 1]}).requests for n in (1, 3))
    assert alone["num_cached_tokens"].tolist() == several["num_cached_tokens"].tolist() == [0, 304]
    assert several["arrival_s"][1] == several["finish_s"][0]


def test_one_answer_each_is_no_parallel_sampling() -> None:
    requests = {"prompt_tokens": [100, 60], "output_tokens": [5, 9]}
    plain, one = (run(requests | more) for more in ({}, {"n": [1, 1]}))
    assert {**plain.summary, "wall_time_s": 0} == {**one.summary, "wall_time_s": 0}
    pd.testing.assert_frame_equal(plain.requests, one.requests.drop(columns="n"))


def test_a_request_is_in_flight_until_its_last_answer() -> None:
    """One client, and one user: each request is sent when the one before it has all its answers."""
    requests = {"arrival_s": [0.0] * 3, "prompt_tokens": [100] * 3, "output_tokens": [40, 5, 9], "n": [3, 1, 2]}
    for clients in ({"max_concurrency": 1}, {"users": 1}):
        rows = run(requests, max_num_seqs=2, **clients).requests  # the third answer waits for a seat
        assert rows["arrival_s"].tolist() == [0.0, *rows["finish_s"][:2]]
        assert rows["finish_s"][0] == pytest.approx(2 * 40 * 0.01)


def test_a_request_is_refused_with_all_its_answers() -> None:
    """Six places: four answers are under way, so that three more find no room, and two do. Four that come with one place too few never have it."""
    requests = {"arrival_s": [0.0, 0.001, 0.002], "prompt_tokens": [100] * 3, "output_tokens": [5] * 3, "n": [4, 3, 2]}
    for ranks in (1, 2):
        rows = run(requests, max_num_queued_reqs=6, data_parallel_size=ranks).requests
        assert rows["generated_tokens"].tolist() == [20, 0, 10]
        assert (
            rows["rejected"][1] == "503: 4 requests were under way and 3 answers asked for, of 6 (max_num_queued_reqs)"
        )
    assert run(requests, max_num_queued_tokens=400).requests["generated_tokens"].tolist() == [20, 0, 0]


def test_the_engines_of_one_server_share_the_answers_out() -> None:
    """The balancer of -dp sees each by itself; a router before two servers sees one request."""
    requests = {"prompt_tokens": [100, 100], "output_tokens": [8, 8], "n": [4, 2]}
    of_server = run(requests, data_parallel_size=2).summary["replicas"]
    assert [replica["total_output_tokens"] for replica in of_server] == [24, 24]
    behind = run(requests, replicas=2, router="round_robin")
    assert [replica["total_output_tokens"] for replica in behind.summary["replicas"]] == [32, 16]
    assert behind.requests["replica"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("Qwen3-30B-A3B", {"data_parallel_size": 2, "enable_expert_parallel": True}),
        ("Llama-3.1-8B", {"kv_offloading_size": 2, "max_model_len": 4096, "num_gpu_blocks_override": 300}),
        (
            "Llama-3.1-8B",
            {
                "speculative_config": {
                    "method": "eagle3",
                    "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
                    "num_speculative_tokens": 3,
                }
            },
        ),
        ("Llama-3.1-8B", {"pipeline_parallel_size": 2}),
        ("Llama-3.1-8B", {"batching": "static", "max_num_seqs": 4}),
    ],
)
def test_totals_add_up_in_every_mode(model: str, engine: dict[str, Any]) -> None:
    """Ranks in lock step, a CPU tier, drafts with lengths of their own, stages, a what-if."""
    requests = {"arrival_s": np.arange(12) * 0.02, "prompt_tokens": [500, 40, 90] * 4, "output_tokens": [30, 9, 12] * 4}
    table = pd.DataFrame(requests | {"n": [3, 1, 2] * 4, "acceptance_length": [2.5, 1.0, 1.5] * 4})
    found = sim.simulate(model, "h100-sxm", table, engine=sim.EngineConfig(**engine), intervals=False)
    assert found.summary["completed"] == 12
    assert found.summary["total_output_tokens"] == int((table["output_tokens"] * table["n"]).sum())
    assert found.requests["generated_tokens"].tolist() == (table["output_tokens"] * table["n"]).tolist()
    if "num_loaded_tokens" in found.requests:
        assert found.requests["num_loaded_tokens"].sum() == found.summary["kv_offload"]["loaded_tokens"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"fleet": {"pools": [{"role": "prefill"}, {"role": "decode"}]}}, "pools that prefill for others"),
        ({"replicas": 2, "kv_pull": "kv_recompute_threshold=64"}, "prefixes that replicas pull"),
        ({"sampling": "greedy"}, "vLLM refuses them where sampling is greedy"),
    ],
)
def test_where_it_is_not_simulated(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=rf"several answers to a prompt \(`n`\).*{what}"):
        run({"prompt_tokens": [10], "output_tokens": [5], "n": [2]}, **arguments)


def run(requests: dict[str, Any], **arguments: Any) -> sim.Result:
    """All at once unless said otherwise, on steps of 10 ms."""
    table = pd.DataFrame({"arrival_s": [0.0] * len(requests["n" if "n" in requests else "prompt_tokens"])} | requests)
    engine = sim.EngineConfig(**{name: arguments.pop(name) for name in ENGINE & arguments.keys()})
    return sim.simulate(
        "Llama-3.1-8B", "h100-sxm", table, engine=engine, step_time_model=A_STEP, intervals=False, **arguments
    )
