"""By the client's clock tokens come later, and who waits for an answer waits until the client has it."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.front_end import FITTED_AT_TOKENS, TOKENIZED_S, FrontEnd
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.steptime.linear import LinearStepTime
from tests.configs import scheduler_config
from tests.makers import Ask, make_trace

FRONT_END = FrontEnd(request_s=0.25, stream_s=0.01)
CONFIG = scheduler_config(max_num_seqs=8, max_num_batched_tokens=4096, num_gpu_blocks=500)


def served(clients: Clients, num_requests: int = 4, num_replicas: int = 1) -> ClusterRecords:
    """Requests of 600 tokens, all there at once, and what became of them by the engine's clock."""
    trace = make_trace([Ask(str(row), FITTED_AT_TOKENS, 5) for row in range(num_requests)])
    plan = FleetPlan.alike(CONFIG, LinearStepTime(0.1, 0.0, 0.0), num_replicas, "round_robin")
    return simulate(trace, replace(plan, front_end=FRONT_END), clients=clients)


def test_the_next_request_is_sent_when_the_client_has_the_answer() -> None:
    """One user at a time: by the client's clock requests follow each other without a gap, by the engine's with the front end between."""
    clients = Clients(Users(1), clock="client")
    run = served(clients)
    seen = clients.seen(run, FRONT_END).merged.requests
    assert seen.arrival_s[1:].tolist() == pytest.approx(seen.finish_s[:-1].tolist())
    assert np.diff(seen.arrival_s) == pytest.approx(np.diff(served(Clients(Users(1))).merged.requests.arrival_s) + 0.26)


@pytest.mark.parametrize("clients", [Clients(max_concurrency=2), Clients(Users(2))], ids=["limit", "users"])
def test_whoever_waits_sees_more_time_go_by(clients: Clients) -> None:
    """Two in flight at a time: the later ones are sent as much later as both clients have waited for the front end."""
    by_engine, by_client = (served(clients._replace(clock=clock)).merged.requests for clock in ("engine", "client"))
    assert by_client.arrival_s - by_engine.arrival_s == pytest.approx([0, 0, 0.27, 0.26], abs=0.02)


def test_streams_of_a_server_are_those_that_it_serves() -> None:
    """Four streams on one replica wait for each other, on two replicas for half as many; times per token are the same by both clocks."""
    clients = Clients(clock="client")
    for num_replicas, num_streams in ((1, 4), (2, 2)):
        run = served(clients, num_replicas=num_replicas)
        made, seen = run.merged.requests, clients.seen(run, FRONT_END).merged.requests
        late_s = 0.25 + 0.01 * num_streams
        assert seen.first_token_s - made.first_token_s == pytest.approx(late_s)
        assert seen.finish_s - made.finish_s == pytest.approx(late_s)


def test_a_longer_prompt_takes_longer_to_tokenize() -> None:
    """And a short one less, though no answer comes before it was made."""
    assert FRONT_END.late_s(FITTED_AT_TOKENS + 10_000, 0) == pytest.approx(0.25 + 10_000 * TOKENIZED_S)
    assert FrontEnd(0.0001, 0.0).late_s(1, 1) == 0.0


def test_requests_that_never_began_are_not_seen() -> None:
    """A prompt beyond max_model_len is rejected; its times stay empty, and nobody's front end counts it."""
    trace = make_trace([Ask("long", 10**6, 5), Ask("short", FITTED_AT_TOKENS, 5)])
    clients = Clients(clock="client")
    plan = replace(FleetPlan.alike(CONFIG, LinearStepTime(0.1, 0.0, 0.0)), front_end=FRONT_END)
    run = simulate(trace, plan, clients=clients)
    late_s = clients.seen(run, FRONT_END).merged.requests.first_token_s - run.merged.requests.first_token_s
    assert np.isnan(late_s[0])
    assert late_s[1] == pytest.approx(0.26)
