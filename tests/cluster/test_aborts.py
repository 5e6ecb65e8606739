"""Requests that are aborted as whoever sent them loses patience: both engines drop them alike, and go on alike."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simpy.events import EventPriority

from sim.cluster.arrivals import Process, arrivals
from sim.cluster.clock import ARRIVAL, ASK, At
from sim.cluster.replica import LiveReplica
from sim.engine import leaps
from sim.engine.config import SchedulerConfig
from sim.engine.core import EngineCore
from sim.engine.recorder import Recorder
from sim.engine.records import EngineRecords, RequestRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.step_log import LogRow, StepLogger
from sim.specs.arguments import DENSELY
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import gaps
from tests.configs import changed
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference.front_door import let_in, make_requests
from tests.reference.recorder import Recorder as NaiveRecorder
from tests.reference.replica import Replica as NaiveReplica
from tests.workloads import Workload, workloads

GONE = "whoever asked has gone"


class Patience(NamedTuple):
    """How long a request may take, by row, and whether who gives up does so before or after answers of the same instant."""

    times_s: Sequence[float | None]
    kind: EventPriority = ARRIVAL


class Done(NamedTuple):
    """What each replica recorded and logged, and what became of each request."""

    replicas: Sequence[EngineRecords]
    logs: Sequence[list[LogRow]]
    requests: RequestRecords


class Service:
    """Replicas of either engine; a request goes to the one with the fewest, and is aborted when its time is over."""

    def __init__(self, env: simpy.Environment, patience: Patience) -> None:
        self._env = env
        self._patience = patience
        self._ended: set[Any] = set()
        self.replicas: list[Any] = []

    def submit(self, request: Any) -> None:
        replica = min(self.replicas, key=lambda candidate: sum(candidate.load))
        replica.submit(request)
        patience_s = self._patience.times_s[request.index]
        if patience_s is not None:
            self._env.process(self._give_up(request, replica, self._env.now + patience_s))

    def _give_up(self, request: Any, replica: Any, at_s: float) -> Process:
        yield At(self._env, at_s, self._patience.kind)
        if request not in self._ended:
            replica.abort(request, reason=GONE)

    def ended(self, requests: Iterable[Any]) -> None:
        self._ended.update(requests)


Run = Callable[[Trace, SchedulerConfig, StepTimeModel, Patience, int], Done]


def fast(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, patience: Patience, num_replicas: int = 1
) -> Done:
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    service = Service(env, patience)
    source = RequestSource(trace, config)
    table = RequestTable(source)
    logs: list[list[LogRow]] = [[] for _ in range(num_replicas)]
    recorders = [Recorder(table, number) for number in range(num_replicas)]
    make_core = partial(EngineCore, config, step_time, start_s=env.now, num_keys=source.num_keys())
    cores = [make_core(recorder, log=StepLogger(log.append)) for recorder, log in zip(recorders, logs, strict=True)]
    service.replicas = [LiveReplica(env, core, number, 0, service.ended) for number, core in enumerate(cores)]
    env.process(arrivals(env, source, service.submit))
    env.run()
    parts = [recorder.records(core.state) for recorder, core in zip(recorders, cores, strict=True)]
    return Done(parts, logs, table.records())


def naive(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, patience: Patience, num_replicas: int = 1
) -> Done:
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    service = Service(env, patience)
    requests = make_requests(trace, config)
    logs: list[list[LogRow]] = [[] for _ in range(num_replicas)]
    recorders = [NaiveRecorder(log.append) for log in logs]
    service.replicas = [
        NaiveReplica(
            env, config, step_time, recorder, number=number, on_finished=lambda request: service.ended([request])
        )
        for number, recorder in enumerate(recorders)
    ]
    for replica in service.replicas:
        env.process(replica.run())
    env.process(arrivals(env, let_in(requests), service.submit))  # type: ignore[arg-type]
    env.run()
    parts = [
        recorder.records(requests, replica.scheduler)
        for recorder, replica in zip(recorders, service.replicas, strict=True)
    ]
    return Done(parts, logs, parts[0].requests)


ENGINES: dict[str, Run] = {"fast": fast, "reference": naive}


def assert_same(found: Done, expected: Done) -> None:
    """Every step's log, every request's times, tokens and reason, and every replica's records."""
    for log, other_log in zip(found.logs, expected.logs, strict=True):
        for row, other_row in zip(log, other_log, strict=False):
            assert row == other_row
        assert len(log) == len(other_log)
    for column in fields(RequestRecords):
        np.testing.assert_array_equal(
            getattr(found.requests, column.name), getattr(expected.requests, column.name), err_msg=column.name
        )
    for one, other in zip(found.replicas, expected.replicas, strict=True):
        assert_same_steps(one, other)
        assert gaps(one) == gaps(other)
        assert (one.prefix_cache_queries, one.prefix_cache_hits, one.num_evictions) == (
            other.prefix_cache_queries,
            other.prefix_cache_hits,
            other.num_evictions,
        )


def assert_adds_up(requests: RequestRecords) -> None:
    """Whoever arrived was served, rejected or aborted; who was aborted had not got all that it asked for."""
    num_completed = int(np.isfinite(requests.finish_s).sum())
    assert len(requests) == num_completed + len(requests.rejected) + len(requests.failed)
    for row in requests.failed:
        assert requests.generated_tokens[row] < requests.output_tokens[row]
        assert np.isnan(requests.first_token_s[row]) == (requests.generated_tokens[row] == 0)


@examples(400)
@given(
    data=st.data(),
    workload=workloads(may_crash=False),
    num_replicas=st.sampled_from((1, 1, 1, 2, 3)),
    kind=st.sampled_from((ARRIVAL, ASK)),
    panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))),
)
def test_engines_agree_on_aborts(
    data: st.DataObject, workload: Workload, num_replicas: int, kind: EventPriority, panel_bits: tuple[int, ...]
) -> None:
    """Whole numbers, so that aborts often fall on the instant of an arrival, an answer or a pass."""
    trace, step_time = workload.trace, Telling(workload.step_time)
    config = workload.config  # the engine that leaps is asked
    groups = tuple(group for group in config.kv_groups if not group.keeps_states)
    config = changed(config, prefix_cache_retention_interval=DENSELY, kv_groups=groups)
    times = st.none() | st.integers(0, 100).map(float) | st.integers(100, 2000).map(float)
    patience = Patience(data.draw(st.lists(times, min_size=len(trace), max_size=len(trace))), kind)
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = fast(trace, config, step_time, patience, num_replicas)
    assert_adds_up(found.requests)
    assert_same(found, naive(trace, config, step_time, patience, num_replicas))


def tokens(done: Done) -> list[dict[str, int]]:
    return [{name: count for name, count, *_ in step["sched"]} for step in done.logs[0]]


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Run:
    return ENGINES[request.param]


def test_a_prefilling_request_gives_its_blocks_back_at_once(engine: Run) -> None:
    """As recorded from vLLM 0.33: A has computed 8 of its tokens, and when it is aborted all 999 blocks are free again."""
    config = make_config(num_gpu_blocks=1000, max_num_batched_tokens=8)
    done = engine(make_trace([Ask("A", 20, 5)]), config, ONE_SECOND, Patience([0.5]), 1)
    assert done.logs[0][0]["free"] == 997
    assert done.logs[0][0]["free_after"] == 999
    assert tokens(done) == [{"A": 8}]
    assert done.requests.failed == {0: GONE}
    assert done.requests.generated_tokens.tolist() == [0]


def test_the_token_of_the_batch_under_way_is_dropped(engine: Run) -> None:
    """Steps end at 1, 2, 3: A, who goes at 2.5, has two tokens; B, who needed the seat, is admitted by the pass at 3."""
    asks = [Ask("A", 4, 9), Ask("B", 4, 2)]
    done = engine(make_trace(asks), make_config(max_num_seqs=1), ONE_SECOND, Patience([2.5, None]), 1)
    assert tokens(done) == [{"A": 4}, {"A": 1}, {"A": 1}, {"B": 4}, {"B": 1}]
    assert done.requests.generated_tokens.tolist() == [2, 2]
    assert done.requests.finish_s.tolist()[1] == 5.0


def test_under_async_scheduling_the_batch_behind_it_runs_too(engine: Run) -> None:
    """At 2.5 two batches with A are in flight: the tokens of both are dropped; that launched at 3 is without A."""
    asks = [Ask("A", 4, 9), Ask("B", 4, 2)]
    config = make_config(max_num_seqs=1, async_scheduling=True)
    done = engine(make_trace(asks), config, ONE_SECOND, Patience([2.5, None]), 1)
    assert tokens(done) == [{"A": 4}, {"A": 1}, {"A": 1}, {"A": 1}, {"B": 4}, {"B": 1}]
    assert done.requests.generated_tokens.tolist() == [2, 2]


def test_who_waits_leaves_the_queue(engine: Run) -> None:
    """B leaves before it has begun, C takes its turn when A has ended."""
    asks = [Ask("A", 4, 3), Ask("B", 4, 2), Ask("C", 4, 1)]
    done = engine(make_trace(asks), make_config(max_num_seqs=1), ONE_SECOND, Patience([None, 1.5, None]), 1)
    assert tokens(done) == [{"A": 4}, {"A": 1}, {"A": 1}, {"C": 4}]
    assert done.requests.failed == {1: GONE}
    assert np.isnan(done.requests.first_scheduled_s[1])


def test_a_head_that_goes_makes_way_for_the_next(engine: Run) -> None:
    """B needs more blocks than A leaves free; when it goes, C, who fits, is admitted by the pass at 2."""
    asks = [Ask("A", 8, 9), Ask("B", 16, 2), Ask("C", 4, 1)]
    config = make_config(num_gpu_blocks=6, max_model_len=20)
    done = engine(make_trace(asks), config, ONE_SECOND, Patience([None, 1.5, None]), 1)
    assert tokens(done)[:3] == [{"A": 8}, {"A": 1}, {"A": 1, "C": 4}]


@pytest.mark.parametrize("kind", [ARRIVAL, ASK])
def test_an_answer_at_the_very_instant_counts(engine: Run, kind: EventPriority) -> None:
    """A's last token comes at 3, whether it is aborted ahead of that or behind."""
    trace = make_trace([Ask("A", 4, 3)])
    done = engine(trace, make_config(), ONE_SECOND, Patience([3.0], kind), 1)
    assert (done.requests.failed, done.requests.finish_s.tolist()) == ({}, [3.0])
