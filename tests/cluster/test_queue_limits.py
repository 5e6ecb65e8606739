"""vLLM's own limits of what a server takes in: who is let in and who gets a 503, in fleets that stay."""

from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.errors import ConfigError
from sim.steptime.linear import LinearStepTime
from tests.cluster.test_changes_agree import assert_same_run as assert_same_change
from tests.cluster.test_changes_agree import dynamics
from tests.cluster.test_clusters_agree import assert_same_run, closed_loops, panel_bits, routers
from tests.cluster.test_conservation import assert_all_ended_once
from tests.configs import changed, scheduler_config
from tests.engine.test_engines_agree import Telling
from tests.makers import Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.cluster import simulate_cluster
from tests.reference.managed import Pool, simulate_changing
from tests.workloads import SINCE_0_12, Workload, workloads

limits = st.fixed_dictionaries(
    {}, optional={"max_num_queued_reqs": st.integers(1, 4), "max_num_queued_tokens": st.integers(1, 40)}
)


@examples(200)
@given(
    workload=workloads(),
    limits=limits,
    num_replicas=st.integers(1, 3),
    changes=dynamics(),
    users=st.sampled_from((None, None, Users(3, 1.0))),
)
def test_fleets_that_change(
    workload: Workload, limits: dict[str, int], num_replicas: int, changes: Dynamics, users: Users | None
) -> None:
    """Whoever is refused is rejected, or fails where a replica had it before; losses and aborts of the same instant come first."""
    trace, config, step_time = workload
    config, clients = changed(config, **limits), Clients(users)
    plan = FleetPlan.alike(config, Telling(step_time), num_replicas, dynamics=changes, start_up_s=3.0)
    found = simulate(trace, plan, clients=clients)
    expected = simulate_changing(
        trace,
        config,
        [Pool(Telling(step_time), num_replicas, 3.0)],
        router="least_loaded",
        dynamics=changes,
        clients=clients,
    )
    assert_same_change(found, expected)
    assert_all_ended_once(found)


@examples(200)
@given(
    data=st.data(),
    workload=workloads(versions=SINCE_0_12),
    limits=limits,
    num_replicas=st.integers(1, 3),
    router=routers,
    panel_bits=panel_bits,
)
def test_who_is_let_in(
    data: st.DataObject,
    workload: Workload,
    limits: dict[str, int],
    num_replicas: int,
    router: str,
    panel_bits: tuple[int, ...],
) -> None:
    """Each replica is a server with its own limits, but the engines of one; requests come at their times or wait for answers."""
    trace, config, step_time = workload
    config = changed(config, **limits)
    trace, clients = data.draw(closed_loops(trace))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, FleetPlan.alike(config, Telling(step_time), num_replicas, router), clients=clients)
    expected = simulate_cluster(
        trace, config, Telling(step_time), num_replicas=num_replicas, router=router, clients=clients
    )
    assert_same_run(found, expected)


def run(**limits: int) -> Any:
    """A prompt of 10 tokens each second, three tokens of one second each, two seats unless said otherwise."""
    trace = make_trace([Ask(f"r{at_s}", 10, 3, at_s) for at_s in range(6)])
    config = scheduler_config(**{"max_num_seqs": 2, "async_scheduling": False} | limits)
    return simulate(trace, FleetPlan.alike(config, LinearStepTime(1.0, 0.0, 0.0))).merged.requests


def test_requests_under_way_are_counted_with_those_that_wait() -> None:
    """The first answer comes back at 3 s, when the fourth request arrives, which is let in."""
    assert run(max_num_queued_reqs=2).rejected == {
        2: "503: 2 requests were under way (max_num_queued_reqs)",
        5: "503: 2 requests were under way (max_num_queued_reqs)",
    }
    assert run(max_num_queued_reqs=4).rejected == {}


def test_prompts_count_until_their_first_token() -> None:
    """With one seat two wait at 3 s, one at 4 s, when the second has its first token, and two at 5 s; none counts itself."""
    sentence = "503: 20 prompt tokens waited (max_num_queued_tokens 11)"
    assert run(max_num_seqs=1, max_num_queued_tokens=11).rejected == {3: sentence, 5: sentence}


def test_a_server_of_several_engines_counts_them_together() -> None:
    """-dp 2 takes in as many as one engine does, two servers twice as many."""
    burst = pd.DataFrame({"arrival_s": [0.0] * 12, "prompt_tokens": 64, "output_tokens": 8})
    rejected = [
        sim.simulate(
            "Llama-3.1-8B",
            "h100-sxm",
            burst,
            engine=sim.EngineConfig(data_parallel_size=ranks, max_num_queued_reqs=4),
            replicas=replicas,
            intervals=False,
        ).summary["rejected"]
        for ranks, replicas in ((1, None), (2, None), (1, 2))
    ]
    assert rejected == [8, 8, 4]


def test_what_is_refused_stands_in_the_results() -> None:
    """In the summary, and with its reason in the table of requests."""
    burst = pd.DataFrame({"arrival_s": [0.0] * 5, "prompt_tokens": 64, "output_tokens": 8})
    engine = sim.EngineConfig(max_num_queued_reqs=3)
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", burst, engine=engine, intervals=False)
    assert (found.summary["completed"], found.summary["rejected"]) == (3, 2)
    assert found.requests["rejected"].dropna().tolist() == ["503: 3 requests were under way (max_num_queued_reqs)"] * 2


@pytest.mark.parametrize(
    "fleet",
    [
        {"pools": [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}]},
        {"pools": [{"name": "a", "replicas": 2}], "router": "vllm_dp", "faults": [{"at_s": 1, "replica": 0}]},
    ],
)
def test_fleets_that_it_is_not_simulated_for(fleet: dict[str, Any]) -> None:
    """They are refused, not served without limits."""
    engine = sim.EngineConfig(max_num_queued_reqs=3)
    with pytest.raises(ConfigError, match="a: max_num_queued_reqs and max_num_queued_tokens are simulated for servers"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=3, engine=engine, fleet=fleet)
