"""What older versions of vLLM did otherwise, by the version whose rules they are."""

import numpy as np
import pytest

from sim.errors import EngineCrashError
from sim.specs.releases import release_for
from tests.engines import ENGINES, Engine
from tests.makers import Ask, Run, run


def run_as(engine: Engine, vllm_version: str, asks: list[Ask], **arguments: object) -> Run:
    """Under the rules of that version, and without the admission gate that the older ones lack."""
    rules = release_for(vllm_version).rules
    return run(engine, asks, rules=rules, **{"scheduler_reserve_full_isl": False, **arguments})


FIRST_IN_LINE_AND_LEAST_URGENT = [Ask("A", 9, 12, priority=9), Ask("B", 9, 12, priority=0, at=1)]
"""With 7 usable blocks of 4, A has had its token when B's growth makes it the victim."""

TIGHT = {"num_gpu_blocks": 8, "scheduling_policy": "priority"}


def test_a_ghost_runs_once_more_and_resumes_behind_what_it_has_not_computed(engine: Engine) -> None:
    """A's token of s10 yields nothing, but counts: A resumes with 16 of its 17 tokens, and its cached blocks are no hit."""
    done = run_as(engine, "0.11.0", FIRST_IN_LINE_AND_LEAST_URGENT, **TIGHT)
    ghost = next(number for number, step in enumerate(done.steps) if step["preempted"])
    assert done.steps[ghost]["ghosts"] == done.steps[ghost]["preempted"] == ["A"]
    assert done.tokens[ghost] == {"A": 1, "B": 1}
    assert done.steps[ghost]["sampled"] == ["B"]
    back = next(step for step in done.steps if step["resumed"])
    known = 9 + sum("A" in step["sampled"] for step in done.steps[:ghost])
    assert [row for row in back["sched"] if row[0] == "A"] == [["A", known - 1, 1, -(-known // 4)]]
    assert back["hits"] == {}
    assert done.of("A", "generated_tokens") == 12


def test_since_0_11_1_a_victim_leaves_no_ghost(engine: Engine) -> None:
    """A's token goes back to the budget, and what is left of its blocks is hit when it resumes."""
    done = run_as(engine, "0.11.1", FIRST_IN_LINE_AND_LEAST_URGENT, **TIGHT)
    assert done.tokens[next(number for number, step in enumerate(done.steps) if step["preempted"])] == {"B": 1}
    assert next(step for step in done.steps if step["resumed"])["hits"].keys() == {"A"}


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1"])
def test_a_ghost_kills_the_engine_before_0_10_2(engine: Engine, version: str) -> None:
    """A and B are in the batch when only B is left running."""
    with pytest.raises(EngineCrashError):
        run_as(engine, version, FIRST_IN_LINE_AND_LEAST_URGENT, **TIGHT)
    run_as(engine, "0.10.2", FIRST_IN_LINE_AND_LEAST_URGENT, **TIGHT)


def test_a_ghost_beside_one_that_is_passed_over_kills_nothing(engine: Engine) -> None:
    """D is passed over when A becomes a ghost, so that the batch of three is no larger than the running list."""
    asks = [
        Ask("A", 2, 9, priority=9),
        Ask("B", 2, 9, priority=0),
        Ask("C", 9, 1, at=1, priority=1),
        Ask("D", 12, 1, at=1, priority=2),
    ]
    limits = {"num_gpu_blocks": 7, "max_num_batched_tokens": 5, "long_prefill_token_threshold": 2}
    done = run_as(engine, "0.10.1", asks, scheduling_policy="priority", **limits)
    assert (done.tokens[3], done.column("running")[3]) == ({"B": 1, "A": 1, "C": 2}, ["B", "C", "D"])


def test_two_of_equal_rank_kill_the_queue_before_0_12(engine: Engine) -> None:
    """Its heap would have to compare the requests themselves; first come, first served does not."""
    asks = [Ask("A", 4, 2), Ask("B", 4, 2)]
    with pytest.raises(EngineCrashError):
        run_as(engine, "0.11.2", asks, scheduling_policy="priority")
    assert run_as(engine, "0.11.2", asks).tokens == run_as(engine, "0.12.0", asks, scheduling_policy="priority").tokens


def test_the_crash_is_told_in_a_sentence() -> None:
    """What died of what, and what to do."""
    with pytest.raises(
        EngineCrashError, match=r"^the engine of vLLM before 0\.12\.0 crashes .* or choose fcfs or a newer"
    ):
        run_as(ENGINES["fast"], "0.11.2", [Ask("A", 4, 2), Ask("B", 4, 2)], scheduling_policy="priority")
    with pytest.raises(
        EngineCrashError, match=r"^the engine of vLLM before 0\.10\.2 crashes .* and 2 in a batch .* 1 that"
    ):
        run_as(ENGINES["fast"], "0.9.2", FIRST_IN_LINE_AND_LEAST_URGENT, **TIGHT)


@pytest.mark.parametrize(
    ("version", "fifth"), [("0.11.0", {"B": 1}), ("0.27.1", {"B": 1, "D": 1}), ("0.28.0", {"B": 1, "D": 1, "C": 1})]
)
def test_who_is_passed_over_as_somebody_earlier_in_line_leaves(
    engine: Engine, version: str, fifth: dict[str, int]
) -> None:
    """In s5 [B, A, D, C] run and A's last token is in flight. D's growth takes A's place in line, and C is passed over.

    From 0.28.0 on the scan follows. Before 0.11.1 A wants one more token, is its own victim and ends the scan.
    """
    asks = [
        Ask("A", 3, 4, priority=9),
        Ask("B", 1, 5, priority=2),
        Ask("C", 1, 6, at=2, priority=2),
        Ask("D", 4, 2, at=2, priority=1),
    ]
    limits = {"num_gpu_blocks": 10, "block_size": 2, "scheduling_policy": "priority", "enable_prefix_caching": False}
    done = run_as(engine, version, asks, async_scheduling=True, **limits)
    assert done.column("preempted")[4] == ["A"]
    assert done.tokens[4] == fifth


@pytest.mark.parametrize(("version", "launches"), [("0.11.0", 4), ("0.11.1", 3)])
def test_a_last_token_in_flight_cost_one_more_decode(engine: Engine, version: str, launches: int) -> None:
    """Statement 30: A4 with 3 outputs. The fourth launch yields a token that is dropped, and no gap."""
    done = run_as(engine, version, [Ask("A", 4, 3)], async_scheduling=True)
    assert done.tokens == [{"A": 4}, *[{"A": 1}] * (launches - 1)]
    assert (done.of("A", "generated_tokens"), done.of("A", "finish_s")) == (3, 3)
    assert done.gaps == {1: 2}
    assert done.records.steps.num_decodes.tolist() == [0, *[1] * (launches - 1)]


def test_the_decode_too_many_takes_a_block_and_stops_at_max_model_len(engine: Engine) -> None:
    """A3 with 2 outputs has its fourth position filled in s2; the fifth, in s3, would need a second block."""
    blocks = {
        limit: run_as(engine, "0.11.0", [Ask("A", 3, 2)], async_scheduling=True, max_model_len=limit)
        for limit in (5, 6)
    }
    assert [len(done.steps) for done in blocks.values()] == [2, 3]
    assert blocks[6].column("free") == [998, 998, 997]
    assert blocks[6].steps[-1]["free_after"] == 999


@pytest.mark.parametrize(
    ("version", "tokens"),
    [("0.11.2", [{"A": 5, "C": 2}, {"D": 7}, {"B": 6}]), ("0.12.0", [{"A": 5}, {"B": 6}, {"D": 7}, {"C": 2}])],
)
def test_prompts_too_long_for_the_budget_left_were_skipped(
    engine: Engine, version: str, tokens: list[dict[str, int]]
) -> None:
    """Budget 8, not to be split: behind A5, B6 and D7 let C2 pass and come back in reversed order; since 0.12 B6 stops it."""
    asks = [Ask("A", 5, 1), Ask("B", 6, 1), Ask("D", 7, 1), Ask("C", 2, 1)]
    limits = {"max_num_batched_tokens": 8, "max_model_len": 8, "enable_chunked_prefill": False}
    assert run_as(engine, version, asks, **limits).tokens == tokens


def test_a_pass_that_only_preempts_is_counted_with_the_next_step(engine: Engine) -> None:
    """A, the least urgent, grows in a full pool, is its own victim, and ends the scan: that pass runs nothing."""
    asks = [Ask("A", 30, 21, priority=1), Ask("B", 16, 6, at=1)]
    limits = {"num_gpu_blocks": 3, "block_size": 32, "scheduling_policy": "priority", "enable_prefix_caching": False}
    done = run_as(engine, "0.10.0", asks, **limits)
    idle = next(number for number, step in enumerate(done.steps) if not step["sched"])
    assert done.column("preempted")[idle] == ["A"]
    assert done.records.steps.num_preempted.sum() == done.records.requests.num_preemptions.sum() == 1
    assert np.flatnonzero(done.records.steps.num_preempted).tolist() == [idle]
