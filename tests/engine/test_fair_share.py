"""A what-if: the client who was served least comes first (virtual token counters)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.deployment import deploy
from sim.engine.fair_share import FairShareQueue
from sim.engine.request import Request
from sim.errors import ConfigError
from sim.specs.engine import Policy
from sim.specs.serve_command import serve_command
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.configs import changed
from tests.conformance.case import Case
from tests.engine.test_swapping import assert_engines_agree
from tests.engine.test_swapping import cases as hard_cases
from tests.properties import engine_examples as examples

A_STEP = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)


def waiting(*clients: int) -> list[Request]:
    """A request of each of these clients, a second apart."""
    requests = [Request(row, str(row), float(row), 10, 10) for row in range(len(clients))]
    for request, client in zip(requests, clients, strict=True):
        request.client = client
    return requests


def admit(queue: FairShareQueue, num_tokens: int) -> int:
    """The row of the head, which costs its client so much."""
    queue.admit_first(num_tokens)
    return queue.pop_first().index


def test_the_client_with_the_lowest_counter_is_next() -> None:
    """Three requests of one client, two of another: in turns, as each costs 10; of equals the first to come."""
    queue = FairShareQueue()
    for request in waiting(1, 1, 1, 2, 2):
        queue.add(request)
    assert [request.index for request in queue] == [0, 1, 2, 3, 4]
    assert [admit(queue, 10) for _ in range(4)] == [0, 3, 1, 4]
    queue.charge(1, 5)
    assert len(queue) == 1
    assert queue[0].index == 2


def test_nothing_is_saved_up() -> None:
    """Who comes back is lifted to the least of those who wait, or else to who was admitted last; an unpaid look changes nothing."""
    queue = FairShareQueue()
    first, other, third, fourth = waiting(1, 1, 2, 3)
    queue.add(first)
    queue.add(other)
    assert admit(queue, 100) == 0
    queue.add(third)  # begins at 100, as client 1 stands there
    assert queue[0] is other
    assert queue.pop_first() is other
    queue.put_back(other)
    assert (queue[0], other in queue, first in queue) == (other, True, False)
    assert (admit(queue, 1), admit(queue, 7)) == (1, 2)
    queue.add(fourth)  # to 107, where client 2 stands who was admitted last
    queue.charge(1, 5)
    first.arrival_s = 9.0
    queue.add(first)  # lifted from 106 to 107, it came later
    assert [request.index for request in queue] == [3, 0]
    queue.put_back_skipped([])
    queue.remove_all([fourth])
    assert [request.index for request in queue] == [0]


def flood(policy: Policy, **columns: Any) -> sim.Result:
    """Eight requests of one client at once, and then two of another, with one seat; each takes ten steps of 10 ms."""
    requests = pd.DataFrame({"arrival_s": [0.0] * 8 + [0.005] * 2, "prompt_tokens": 10, "output_tokens": 10, **columns})
    engine = sim.EngineConfig(
        max_num_seqs=1, scheduling_policy=policy, async_scheduling=False, enable_lora="lora_name" in columns
    )
    return sim.simulate("Llama-3.1-8B", "h100-sxm", requests, engine=engine, step_time_model=A_STEP, intervals=False)


BUSY_AND_CALM = ["busy"] * 8 + ["calm"] * 2


def test_a_flood_does_not_drown_others() -> None:
    """In order of arrival the calm client waits for eight; by counters for the one that runs, and then it is each one's turn."""
    fcfs = flood("fcfs", lora_name=BUSY_AND_CALM).requests["first_scheduled_s"]
    fair = flood("fair_share", lora_name=BUSY_AND_CALM).requests["first_scheduled_s"]
    assert np.argsort(fcfs).tolist() == list(range(10))
    assert np.argsort(fair).tolist() == [0, 8, 1, 9, 2, 3, 4, 5, 6, 7]


def test_sessions_are_clients_where_nobody_has_adapters() -> None:
    """And where the trace names nobody, all requests are one client's."""
    count = 10
    trace = Trace(tuple(map(str, range(count))), np.zeros(count), np.full(count, 9), np.full(count, 9))
    assert trace.client is None
    sessions = replace(trace, session_id=tuple("ab" * 5))
    assert sessions.client == tuple("ab" * 5)
    assert replace(sessions, lora_name=("",) * count).client == ("",) * count
    found = flood("fair_share").requests["first_scheduled_s"]
    assert np.argsort(found).tolist() == list(range(count))


def test_it_is_named_as_a_what_if() -> None:
    engine = sim.EngineConfig(scheduling_policy="fair_share")
    assert serve_command("m", engine) == "vllm serve m  # without scheduling_policy fair_share, which no vLLM has"
    assert deploy("Llama-3.1-8B", "h100-sxm", engine).modes.shares_fairly


@pytest.mark.parametrize(
    ("arguments", "other"),
    [({"batching": "static"}, "batching static"), ({"preemption_mode": "swap"}, "preemption_mode swap")],
)
def test_what_goes_not_with_it(arguments: dict[str, Any], other: str) -> None:
    engine = sim.EngineConfig(scheduling_policy="fair_share", **arguments)
    with pytest.raises(ConfigError, match=f"scheduling_policy fair_share is not simulated with {other}"):
        deploy("Llama-3.1-8B", "h100-sxm", engine).require_runnable()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Requests of a few clients that hardly fit."""
    case = draw(hard_cases())
    names = draw(st.lists(st.sampled_from("abc"), min_size=8, max_size=8))
    trace = case.trace if case.trace.client else replace(case.trace, lora_name=tuple(names[: len(case.trace)]))
    config = changed(case.config, scheduling_policy="fair_share")
    return replace(case, trace=trace, config=config, modes=replace(case.modes, swap=None))


@examples(100)
@given(case=cases())
def test_engines_agree(case: Case) -> None:
    """Step by step, on who is admitted when and on what became of each request."""
    assert_engines_agree(case)
