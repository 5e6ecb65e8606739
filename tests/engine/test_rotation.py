"""Decodes that are counted, and calls worked out ahead, are those of an engine that walks: whoever reads its log has it walk."""

import math
import pickle
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from simpy.events import EventPriority

from sim.cluster.arrivals import Process, arrivals
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.clock import ARRIVAL, ASK, FLEET, At
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.replica import LiveReplica
from sim.cluster.simulation import simulate
from sim.deployment import deploy
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.plans import Plan
from sim.engine.records import EngineRecords, RequestRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.step_log import WalkLogger
from sim.errors import ConfigError, EngineCrashError
from sim.fleet import DeployedFleet
from sim.specs.engine import EngineConfig
from sim.steptime.protocol import StepTimeModel
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from tests.cluster.test_aborts import Patience, Service
from tests.cluster.test_clusters_agree import gaps
from tests.cluster.test_pipeline_agrees import Staged, workloads
from tests.configs import scheduler_config
from tests.conformance.case import Case, RecordedStepTime, load_case
from tests.conformance.engines import walk
from tests.conformance.modes import stages_ns
from tests.conformance.test_recorded import GOLDEN
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.engine.test_modes_agree import cases, recorded
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference import modes as naive
from tests.shared import SHARED
from tests.workloads import step_times


def unread(_row: dict[str, Any]) -> None:
    """What a log is written for that nobody wants."""


def assert_same(found: EngineRecords, expected: EngineRecords) -> None:
    """Steps, gaps, and how long stages ran."""
    assert_same_steps(found, expected)
    assert gaps(found) == gaps(expected)
    assert found.stage_busy_s == expected.stage_busy_s


def assert_same_requests(found: RequestRecords, expected: RequestRecords) -> None:
    for column in fields(RequestRecords):
        np.testing.assert_array_equal(getattr(found, column.name), getattr(expected, column.name), err_msg=column.name)


@pytest.mark.parametrize("clients", [AT_THEIR_TIMES, Clients(max_concurrency=9)], ids=["open", "limited"])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(("num_stages", "num_blocks"), [(2, 4_000), (3, 700)])
def test_real_step_times_to_the_last_bit(num_stages: int, num_blocks: int, is_async: bool, clients: Clients) -> None:
    """Sums in the order of stepping, whether or not blocks run out."""
    limits = EngineConfig(
        pipeline_parallel_size=num_stages,
        async_scheduling=is_async,
        max_model_len=8_192,
        num_gpu_blocks_override=num_blocks,
        max_num_seqs=24,
    )
    deployed = deploy("Llama-3.1-8B", "h100-sxm", limits)
    plan = FleetPlan.alike(deployed.config, deployed.step_time, modes=deployed.modes)
    trace = read_trace("chat", rate_scale=2.0).first(60)
    found = simulate(trace, plan, clients=clients)
    expected = simulate(trace, plan, clients=clients, step_log=unread)
    assert_same_requests(found.merged.requests, expected.merged.requests)
    assert_same(found.replicas[0], expected.replicas[0])
    assert_same(pickle.loads(pickle.dumps(found.replicas[0])), expected.replicas[0])  # noqa: S301 - as another process sends them


@pytest.mark.parametrize("num_stages", [1, 2])
def test_rows_that_are_put_away_before_the_end(num_stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few calls at a time, between passes, before and after them, with empty slots: as many rows, and the same."""
    monkeypatch.setattr("sim.engine.walking.call_log.CALLS_AT_ONCE", 7)
    engine = EngineConfig(pipeline_parallel_size=num_stages, enable_lora=num_stages == 1, max_model_len=8_192)
    deployed = deploy("Llama-3.1-8B", "h100-sxm", engine)
    plan = FleetPlan.alike(deployed.config, deployed.step_time, modes=deployed.modes)
    trace = read_trace("chat", rate_scale=0.5).first(40)
    found, expected = simulate(trace, plan), simulate(trace, plan, step_log=unread)
    assert_same(found.replicas[0], expected.replicas[0])
    assert len(found.replicas[0].leaps.blocks) > 10


def test_calls_of_a_rank_that_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank with stages makes some in a slot in which nobody decodes while others step; they have no rows, also where these are put away behind them."""
    engine = EngineConfig(data_parallel_size=2, pipeline_parallel_size=2, max_model_len=8_192)
    plan = DeployedFleet.alike(deploy("Qwen3-30B-A3B", "h100-sxm", engine), engine).plan()
    trace = read_trace("chat", rate_scale=1.0).first(60)
    expected = simulate(trace, plan)
    monkeypatch.setattr("sim.engine.walking.call_log.CALLS_AT_ONCE", 7)
    found = simulate(trace, plan)
    assert_same_requests(found.merged.requests, expected.merged.requests)
    for rank, of_rank in zip(found.replicas, expected.replicas, strict=True):
        assert_same(rank, of_rank)
        assert len(rank.leaps.blocks) > len(of_rank.leaps.blocks)


MODES = [
    *GOLDEN.glob("mode_*.json.gz"),
    *(path for mode in ("pp", "lora", "kv_pd", "offload") for path in (SHARED / "golden" / mode).glob("*.json.gz")),
]


@pytest.mark.parametrize("path", sorted(MODES), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_recorded_schedules(path: Path) -> None:
    """What the log of a walk says, which is held to vLLM's, the records of one that counts do as well."""
    assert_counts_as_it_walks(load_case(path))


def assert_counts_as_it_walks(case: Case) -> None:
    """The same requests, steps, gaps, adapters, loads and stores, or the same end."""
    try:
        expected = walk(case, WalkLogger(unread))
    except (ConfigError, EngineCrashError) as error:
        with pytest.raises(type(error)):
            walk(case, None)
        return
    found = walk(case, None)
    assert_same_requests(found[1], expected[1])
    assert_same(found[0], expected[0])
    assert found[0].lora == expected[0].lora
    assert pickle.dumps(found[0].offload) == pickle.dumps(expected[0].offload)


@examples(300)
@given(
    workload=workloads(),
    step_time=step_times,
    multipliers=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    message_s=st.integers(0, 3),
    idle_sleep_s=st.sampled_from((0.0, 5.0)),
    patience_s=st.lists(st.none() | st.integers(0, 300), min_size=1, max_size=8),
    kind=st.sampled_from((ARRIVAL, ASK)),
    halts_s=st.none() | st.integers(1, 300),
)
def test_whoever_gives_up_and_whatever_is_lost(
    workload: tuple[Trace, SchedulerConfig],
    step_time: RecordedStepTime,
    multipliers: list[int],
    message_s: int,
    idle_sleep_s: float,
    patience_s: list[int | None],
    kind: EventPriority,
    halts_s: int | None,
) -> None:
    """Plans are cut by requests that come, are aborted, and by the end of the replica."""
    trace, config = workload
    timed = Staged(Telling(step_time), multipliers, message_s)
    modes = Modes(num_stages=len(multipliers), idle_sleep_s=idle_sleep_s)
    times_s = [patience_s[number % len(patience_s)] for number in range(len(trace))]
    found, expected = (
        served(trace, config, timed, modes, Patience(times_s, kind), halts_s, is_logged=is_logged)
        for is_logged in (False, True)
    )
    assert_same_requests(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert found[2] == expected[2]


def served(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    modes: Modes,
    patience: Patience,
    halts_s: float | None,
    *,
    is_logged: bool,
) -> tuple[RequestRecords, EngineRecords, dict[int, int]]:
    """What became of requests, what the replica recorded, and what those had returned that it lost."""
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    service, source = Service(env, patience), RequestSource(trace, config)
    table, lost = RequestTable(source), dict[int, int]()
    log = WalkLogger(unread) if is_logged else None
    core = WalkingCore(
        config, step_time, WalkRecorder(table), start_s=env.now, modes=modes, num_keys=source.num_keys(), log=log
    )
    replica = LiveReplica(env, core, 0, 0, service.ended)
    service.replicas = [replica]
    env.process(arrivals(env, source, service.submit))

    def halt() -> Process:
        yield At(env, env.now + (halts_s or 0), FLEET)
        lost.update((request.index, returned) for request, returned in replica.halt().items())

    if halts_s is None:
        env.run()
    else:
        env.process(halt())
        env.run(until=env.now + halts_s + 0.5)
    return table.records(), core.records(), lost


@examples(300)
@given(case=cases(speculates=False))
def test_every_mode_counts_as_it_walks(case: Case) -> None:
    """Adapters, KV from elsewhere, a CPU tier, several KV groups."""
    assert_counts_as_it_walks(case)


def test_a_token_that_was_dropped_is_not_the_last_one() -> None:
    """Who is preempted with a token on its way, which a prefill instance drops, samples it again: a later batch brings it, and no continuation."""
    asks = [Ask("A", 1, 1), Ask("B", 1, 6), Ask("C", 6, 8), Ask("D", 12, 10)]
    config = scheduler_config(
        block_size=1, num_gpu_blocks=30, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=22,
        async_scheduling=False, enable_prefix_caching=False,
    )  # fmt: skip
    modes = naive.Modes(
        num_batches_in_flight=2,
        pipeline=naive.Pipeline(2, partial(stages_ns, [200, 200])),
        transfers=naive.Transfers("nixl", role="kv_producer"),
        idle_sleep_s=1,
    )
    case = Case(
        make_trace(asks), config, RecordedStepTime(1, 0, 1), None, recorded(None), modes,
        [naive.Script(is_remote=is_remote) for is_remote in (False, False, True, True)],
    )  # fmt: skip
    assert_counts_as_it_walks(case)


def test_who_decodes_past_blocks_that_others_may_ask_for_is_walked() -> None:
    """When a window passes such a block decides what of it is still there for the next who asks."""
    prompt, first = ((0, 9),), ((0, 1),)
    asks = [
        Ask("A", prompt, 3),
        Ask("B", first, 1),
        Ask("C", first, 1),
        Ask("D", prompt, 1),
        Ask("E", first, 1),
        Ask("F", first, 1),
    ]
    config = scheduler_config(
        kv_groups=(KVGroup(window=5),), block_size=1, num_gpu_blocks=20, max_num_seqs=2, max_num_batched_tokens=16,
        max_model_len=12, async_scheduling=False, enable_prefix_caching=True,
    )  # fmt: skip
    assert_counts_as_it_walks(
        Case(
            make_trace(asks),
            config,
            RecordedStepTime(1, 0, 0),
            None,
            recorded(None),
            naive.Modes(),
            [naive.Script()] * 6,
        )
    )


def test_a_chunk_of_as_many_tokens_as_batches_are_in_flight_is_no_steady_progress() -> None:
    """A prompt of two tokens in one batch: windows pass both at once, where decodes with a token in each of two batches pass one in each."""
    config = scheduler_config(
        kv_groups=(KVGroup(window=1), KVGroup(window=9)), block_size=1, num_gpu_blocks=60, max_num_seqs=1,
        max_num_batched_tokens=16, max_model_len=30, async_scheduling=True, enable_prefix_caching=False,
    )  # fmt: skip
    trace, modes = make_trace([Ask("A", 2, 12)]), naive.Modes(num_batches_in_flight=2)
    assert_counts_as_it_walks(
        Case(trace, config, RecordedStepTime(1, 0, 0), None, recorded(None), modes, [naive.Script()])
    )


def lone_request() -> tuple[WalkingCore, Request]:
    """An engine with two stages, and who asks it for 400 tokens."""
    config = make_config(max_model_len=500, num_gpu_blocks=600)
    table = RequestTable(source := RequestSource(make_trace([Ask("A", 8, 400)]), config))
    timed, modes = Staged(ONE_SECOND, (1, 1), 0.0), Modes(num_stages=2)
    core = WalkingCore(config, timed, WalkRecorder(table), start_s=0.0, modes=modes)
    core.add_request(request := next(iter(source)))
    return core, request


def next_plan(core: WalkingCore) -> Plan:
    while (plan := core.plan()) is None:
        if not core.launch():
            core.collect()
    return plan


def test_a_plan_ends_when_a_first_token_comes() -> None:
    """An autoscaler, a gateway or a router may ask for it before the plan is done."""
    core, request = lone_request()
    while math.isnan(request.first_token_s):
        plan = next_plan(core)
        core.commit(plan)
    assert request.first_token_s == plan.end_s


def test_a_lone_request_is_leapt_over() -> None:
    """Most of its batches are worked out with others, in calls that alternate with empty ones."""
    core, request = lone_request()
    while math.isnan(request.first_token_s):
        core.commit(next_plan(core))
    plan = next_plan(core)
    assert plan.num_passes > 50
    assert not core.commit(plan)
    core.advance(math.inf)
    assert len(core.records().leaps) == 400
