"""Ranks with pipeline stages in lock step: what vLLM's own loop did, and what follows from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy

import sim
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.rank_log import RankLog
from sim.cluster.simulation import simulate
from sim.cluster.staged_ranks import LazyStagedRanks
from sim.deployment import deploy
from sim.engine.rank_group import LockStepRules
from sim.engine.records import RequestRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.staged_group import StagedGroup
from sim.engine.step_log import LogRow
from sim.engine.walking.modes import Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.staged_rank import StagedRank
from sim.engine.walking.step_log import WalkLogger
from sim.fleet import DeployedFleet
from sim.specs.engine import batches_in_flight
from tests.cluster.test_clusters_agree import gaps
from tests.cluster.test_pipeline_agrees import Staged
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime, load_parts, load_recording
from tests.engine.test_engines_agree import assert_same_steps
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.reference import modes as reference
from tests.reference.front_door import make_requests
from tests.reference.request import Request
from tests.reference.staged_ranks import StagedRanks, StagedTimes

RECORDED = load_recording(Path(__file__).parents[1] / "golden" / "staged_ranks.json.gz")["cases"]


def fast(case: Mapping[str, Any], rows: list[LogRow] | None = None) -> tuple[RequestRecords, StagedGroup]:
    """Of the ranks that the product uses; with a log they visit every request."""
    trace, config, step_time = load_parts(case)
    source = RequestSource(trace, config, capacity_too=False)
    table = RequestTable(source)
    num_ranks, interval = case["ranks"], case["config"].get("prefill_schedule_interval", 1)
    log = None if rows is None else RankLog(rows.append, [{"rank": rank} for rank in range(num_ranks)])
    modes = Modes(
        num_stages=len(case["multipliers"]),
        idle_sleep_s=case["nap_ns"],
        throttle_interval=interval if interval > 1 else 0,
    )
    timed = Staged(step_time, case["multipliers"], case["hop_ns"])
    cores = [
        StagedRank(
            config,
            timed,
            WalkRecorder(table, rank),
            start_s=0.0,
            modes=modes,
            log=WalkLogger(log.of_rank(rank), tells_modes=True) if log else None,
        )
        for rank in range(num_ranks)
    ]
    group = StagedGroup(
        cores,
        timed,
        LockStepRules(case["sync_interval"], prefill_interval=interval),
        num_stages=modes.num_stages,
        is_async=config.engine.async_scheduling,
        start_s=0.0,
        log=log,
    )
    ranks = LazyStagedRanks(cores, group, lambda _rank, _requests: None)
    asked = sorted(case["requests"], key=lambda request: request["arrival_ns"])
    for request, told in zip(source, asked, strict=True):
        ranks.catch_up(request.arrival_s)
        ranks.take(ranks.replicas[told["rank"]], [request])
    ranks.finish()
    return table.records(), group


def naive(case: Mapping[str, Any]) -> tuple[Sequence[Request], StagedRanks]:
    trace, config, step_time = load_parts(case)
    multipliers, interval = case["multipliers"], case["config"].get("prefill_schedule_interval", 1)
    engine = config.engine
    modes = reference.Modes(
        batches_in_flight(len(multipliers), is_async=engine.async_scheduling, rules=engine.rules),
        pipeline=reference.Pipeline(len(multipliers)),
        idle_sleep_s=case["nap_ns"],
        throttle_interval=interval if interval > 1 else 0,
    )
    env = simpy.Environment()
    ranks = StagedRanks(
        env,
        config,
        StagedTimes(
            len(multipliers),
            lambda stage, shape, _: multipliers[stage] * step_time.step_s(shape),
            lambda *_: case["hop_ns"],
        ),
        modes,
        case["ranks"],
        sync_interval=case["sync_interval"],
        looks_at_once=True,
        prefill_interval=interval,
        dispatch=None,
    )
    ranks.finished = lambda _request: None
    requests = make_requests(trace, config)

    def arrive() -> Any:
        asked = sorted(case["requests"], key=lambda request: request["arrival_ns"])
        for request, told in zip(requests, asked, strict=True):
            yield env.timeout(request.arrival_s - env.now)
            ranks.ranks[told["rank"]].submit(request)

    env.process(arrive())
    ranks.start()
    env.run()
    return requests, ranks


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_steps_are_those_of_vllms_own_loop(case: Mapping[str, Any]) -> None:
    """When which tokens were scheduled, and every step on every stage, dummies too: of naive ranks, of those that walk and of those that count."""
    requests, oracle = naive(case)
    rows: list[LogRow] = []
    walked, group = fast(case, rows)
    counted, others = fast(case)
    assert oracle.num_waves == group.records.num_waves == others.records.num_waves == case["waves"]
    for rank, recorded in enumerate(case["steps"]):
        assert recorded == [
            [*map(list, step.stages), step.batches[rank].num_tokens if rank in step.batches else 0]
            for step in oracle.all_steps
        ]
        mine = sorted(
            (row for row in rows if row["rank"] == rank and "wave" in row), key=lambda row: (row["wave"], row["step"])
        )
        assert [row["stages"] for row in mine if row["n"]] == [stages for *stages, tokens in recorded if tokens]
        assert [(row["start"], row["end"], row["n"]) for row in mine] == [
            (stages[0][0], stages[-1][1], tokens) for *stages, tokens in recorded
        ]
        assert [[row["t"], [grant[:2] for grant in row["sched"]]] for row in mine if row["n"]] == case["batches"][rank]
    np.testing.assert_array_equal(walked.finish_s, [request.finish_s for request in requests])
    np.testing.assert_array_equal(walked.first_token_s, counted.first_token_s)
    np.testing.assert_array_equal(walked.finish_s, counted.finish_s)


TWO_STAGES = Modes(num_stages=2, idle_sleep_s=0.25)


def steps_of_a_lone_request(*, is_async: bool) -> list[tuple[float, ...]]:
    """Of both ranks: when the one with the request was called, and when the first stage began and the last one ended; tokens."""
    rows: list[LogRow] = []
    config = scheduler_config(async_scheduling=is_async)
    timed = Staged(ONE_SECOND, (1, 1), 0.0)
    plan = FleetPlan.alike(config, timed, 2, "vllm_dp", modes=TWO_STAGES, lock_step=LockStepRules(4))
    simulate(make_trace([Ask("A", 8, 3)]), plan, step_log=rows.append)
    first, second = ([row for row in rows if row["rank"] == rank] for rank in (0, 1))
    assert {row["n"] for row in second} == {0}
    assert sorted((row["start"], row["end"]) for row in first) == sorted((row["start"], row["end"]) for row in second)
    return [(row["t"], row["start"], row["end"], row["n"]) for row in sorted(first, key=lambda row: int(row["step"]))]


def test_without_async_scheduling_a_dummy_is_between_two_tokens() -> None:
    """The second call finds the request under way, waits for its batch and naps: only then comes the dummy, behind which the next token waits."""
    assert steps_of_a_lone_request(is_async=False)[:6] == [
        (0.0, 0.0, 2.0, 8),
        (2.25, 2.25, 3.25, 0),  # of dummies no stage waits for another
        (2.25, 3.25, 5.25, 1),
        (5.5, 5.5, 6.5, 0),
        (5.5, 6.5, 8.5, 1),
        (8.75, 8.75, 9.75, 0),
    ]


def test_with_async_scheduling_a_dummy_follows_each_batch_through_the_stages() -> None:
    """It is launched behind the nap, and answered with the batch before it: then the next token can be asked for, whose batch finds the first stage free."""
    assert steps_of_a_lone_request(is_async=True)[:6] == [
        (0.0, 0.0, 2.0, 8),
        (0.25, 1.0, 3.0, 0),
        (2.0, 2.0, 4.0, 1),
        (2.25, 3.0, 5.0, 0),
        (4.0, 4.0, 6.0, 1),
        (4.25, 5.0, 7.0, 0),
    ]


def test_what_ranks_with_stages_cost_each_other() -> None:
    """A prompt beside a short one, a stage of a second and one of two, and no time for the next: waiting is counted stage by stage."""
    config, timed = scheduler_config(async_scheduling=False), Staged(RecordedStepTime(1.0, 1.0, 0.0), (1, 2), 0.0)
    plan = FleetPlan.alike(config, timed, 2, "vllm_dp", modes=TWO_STAGES, lock_step=LockStepRules(2))
    found = simulate(make_trace([Ask("A", 9, 1), Ask("B", 4, 1)]), plan)
    (ranks,) = found.ranks
    assert (ranks.num_steps, ranks.num_waves, ranks.dummy_steps) == (2, 1, [1, 1])
    assert (ranks.step_s, ranks.own_s) == (3 * (10.0 + 2.0), 3 * (10.0 + 5.0 + 2.0 + 2.0))
    assert found.merged.stage_busy_s == (20.0, 40.0)


def test_ranks_that_know_no_graphs_and_stages_of_no_time() -> None:
    """A stage that takes no time keeps nobody waiting."""
    config, timed = scheduler_config(), Staged(ONE_SECOND, (1, 0), 0.0)
    plan = FleetPlan.alike(config, timed, 2, "vllm_dp", modes=TWO_STAGES, lock_step=LockStepRules())
    (ranks,) = simulate(make_trace([Ask("A", 9, 2)]), plan).ranks
    assert ranks.own_s == 2 * ranks.step_s == 2 * ranks.num_steps


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("is_async", [False, True])
def test_steps_worked_out_many_at_once_are_single_ones(num_stages: int, *, is_async: bool) -> None:
    """Of a real model, some of whose ranks idle for a while: every time, step and sum, to the last bit."""
    engine = sim.EngineConfig(
        pipeline_parallel_size=num_stages, data_parallel_size=2, max_model_len=8192, async_scheduling=is_async
    )
    deployed = deploy("Qwen3-30B-A3B", "h100-sxm", engine)
    trace = make_trace([Ask(str(row), 40 + 9 * row, 5 + 17 * (row % 7), at=row // 3 * 0.41) for row in range(30)])
    plan = DeployedFleet.alike(deployed, engine).plan()
    many, single = (
        simulate(trace, plan),
        simulate(trace, plan, step_log=lambda _row: None),
    )  # a log visits every request
    (ranks,), (others,) = many.ranks, single.ranks
    for fact in ("num_steps", "num_waves", "dummy_steps", "num_tokens", "num_computed_tokens", "step_s", "own_s"):
        assert getattr(ranks, fact) == getattr(others, fact)
    for name in ("first_scheduled_s", "first_token_s", "finish_s"):
        np.testing.assert_array_equal(getattr(many.merged.requests, name), getattr(single.merged.requests, name))
    for mine, other in zip(many.replicas, single.replicas, strict=True):
        assert_same_steps(mine, other)
        assert gaps(mine) == gaps(other)
        assert mine.stage_busy_s == other.stage_busy_s
