"""A fleet's replicas over time, by hand and against the steps."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

import sim
from sim.cluster.lives import Life
from sim.cluster.records import ClusterRecords
from sim.metrics.over_time import MOST_INTERVALS, replica_columns, replicas_over_time
from tests.metrics.makers import Life as Asked
from tests.metrics.makers import Step, make_leaps, make_records

SERVED = make_records(
    Asked(arrival_s=0.0, prompt_tokens=100, first_scheduled_s=0.0, first_token_s=1.0, finish_s=9.0),
    Asked(arrival_s=1.5, prompt_tokens=60, first_scheduled_s=1.5, first_token_s=2.0, finish_s=300.0),
    steps=(Step(0.0, 9.0, num_decodes=1, num_free_blocks=5), Step(100.0, 300.0, num_decodes=2, num_waiting=3, num_free_blocks=0)),
)  # fmt: skip
RECORDS = replace(SERVED, requests=replace(SERVED.requests, num_cached_tokens=np.array([40, 0])))
IDLE = make_records()


def two(lives: tuple[Life, ...] = ()) -> ClusterRecords:
    """One replica that serves all, and one that nobody asks."""
    return ClusterRecords(RECORDS, (RECORDS, IDLE), np.array([0, 0]), (0, 0), lives)


def test_states_are_those_of_the_step_that_runs() -> None:
    """300 s in intervals of 2 s; between 9 s and 100 s nothing runs."""
    found = replicas_over_time(two(), [11, 11])
    assert found.time_s.tolist() == list(range(0, 300, 2))
    assert found.num_running[0, [0, 4, 5, 49, 50, 149]].tolist() == [1, 1, 0, 0, 2, 2]
    assert found.num_waiting[0, [0, 50]].tolist() == [0, 3]
    assert found.kv_cache_usage[0, [0, 5, 50]].tolist() == [0.5, 0.0, 1.0]
    assert found.num_arrived.sum(axis=1).tolist() == [2, 0]
    assert (found.prompt_tokens[0, 0], found.cached_tokens[0, 0]) == (160, 40)
    assert not found.num_running[1].any()
    assert found.is_ready.all()


def test_a_replica_takes_requests_while_it_is_ready() -> None:
    """The second comes at 10 s, is lost from 20 s to 40 s, and is given back at 60 s."""
    lives = (Life(0, 0, 0.0, (0.0,)), Life(1, 0, 2.0, (10.0, 40.0), (20.0,), 60.0))
    found = replicas_over_time(two(lives), [11, 11])
    assert found.is_ready[0].all()
    assert found.time_s[found.is_ready[1] > 0].tolist() == [*range(10, 20, 2), *range(40, 60, 2)]
    assert lives[0].gone_s == inf


@pytest.mark.parametrize("span_s", [0.001, 0.3, 7.0, 1000.0, 86400.0])
def test_intervals_are_round_and_few(span_s: float) -> None:
    leaps = make_leaps(Step(0.0, span_s / 2), Step(span_s / 2, span_s))
    run = two()
    run = replace(run, replicas=(replace(RECORDS, leaps=leaps), IDLE))
    time_s = replicas_over_time(run, [11, 11]).time_s
    assert MOST_INTERVALS * 0.35 < len(time_s) <= MOST_INTERVALS
    assert f"{time_s[1]:e}"[0] in "125"


def test_a_row_an_instant_and_replica() -> None:
    """What a run left adds up: its requests, and the tokens that were found."""
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", limit=60, replicas=3, intervals=False)
    columns = replica_columns(found._replicas_over_time, ["a", "a", "b"])
    assert {name: len(column) for name, column in columns.items()} == dict.fromkeys(columns, len(columns["time_s"]))
    assert sum(columns["num_arrived"]) == 60
    assert sum(columns["cached_tokens"]) == found.requests["num_cached_tokens"].sum()
    assert dict(zip(columns["replica"], columns["pool"], strict=True)) == {0: "a", 1: "a", 2: "b"}
