"""What happens where blocks run out: who is put back, who waits, and what that does to the figures of a request."""

import pytest

from sim.specs.rules import SchedulingRules
from tests.engines import Engine
from tests.makers import Ask, Run, run

PAST_ITSELF = SchedulingRules(preempts_past_itself=True)


def two_of_which_one_fits(engine: Engine, **arguments: object) -> Run:
    """5 usable blocks; A8 and B8 hold 4 and both grow in the second step."""
    return run(engine, [Ask("A", 8, 12), Ask("B", 8, 12)], num_gpu_blocks=6, **arguments)


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_the_last_admitted_is_recomputed_when_blocks_run_out(engine: Engine, caching: bool) -> None:
    """Statement 11: A takes the last block, B preempts itself, waits for 3 blocks and recomputes 8 + 1 tokens."""
    done = two_of_which_one_fits(engine, enable_prefix_caching=caching)
    assert done.tokens == [{"A": 8, "B": 8}, *[{"A": 1}] * 11, {"B": 9}, *[{"B": 1}] * 10]
    assert done.column("preempted") == [[], ["B"], *[[]] * 21]
    assert done.column("resumed") == [*[[]] * 12, ["B"], *[[]] * 10]
    assert done.column("free_after")[:13] == [1, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 5, 2]
    assert done.of("B", "finish_s") == 23


def test_a_preempted_request_keeps_its_first_token_and_has_one_long_gap(engine: Engine) -> None:
    """Statement 43: B was scheduled at 0 and had its first token at 1; its second comes at 13, a gap of 12 s."""
    done = two_of_which_one_fits(engine)
    assert (done.of("B", "first_scheduled_s"), done.of("B", "first_token_s")) == (0, 1)
    assert (done.of("A", "num_preemptions"), done.of("B", "num_preemptions")) == (0, 1)
    assert done.gaps == {1: 21, 12: 1}


def test_a_preempted_request_finds_what_is_left_of_its_cache(engine: Engine) -> None:
    """Statement 12: of B's 3 cached blocks A evicted one as it grew; 8 of 13 known tokens are hit, 5 are recomputed."""
    done = run(engine, [Ask("A", 12, 6), Ask("B", 12, 8)], num_gpu_blocks=8)
    assert done.column("preempted")[1] == ["B"]
    assert done.column("free_after")[:7] == [1, 3, 3, 3, 3, 7, 3]
    assert done.tokens[6] == {"B": 5}
    assert done.column("hits")[6] == {"B": 8}
    assert done.of("B", "num_cached_tokens") == 0


def test_a_step_that_preempts_admits_nobody(engine: Engine) -> None:
    """Statement 13: A is put back for B; urgent little C would fit in what A left, but is admitted a step later."""
    asks = [Ask("A", 8, 8, priority=5), Ask("B", 8, 8, priority=1), Ask("C", 4, 1, at=1, priority=0)]
    done = run(engine, asks, num_gpu_blocks=6, scheduling_policy="priority")
    assert done.column("preempted")[1] == ["A"]
    assert done.tokens[1:3] == [{"B": 1}, {"B": 1, "C": 4}]


@pytest.mark.parametrize(("policy", "running", "victim"), [("priority", ["B", "A"], "A"), ("fcfs", ["A", "B"], "B")])
def test_the_victim_is_the_least_urgent_or_the_last_to_come(
    engine: Engine, policy: str, running: list[str], victim: str
) -> None:
    """Statement 15: A has priority 5 and B 0; by priority A is put back, by arrival B."""
    asks = [Ask("A", 8, 12, priority=5), Ask("B", 8, 12, priority=0)]
    done = run(engine, asks, num_gpu_blocks=6, scheduling_policy=policy)
    assert done.column("running")[0] == running
    assert done.column("preempted")[1] == [victim]


@pytest.mark.parametrize(
    ("rules", "steps"), [(SchedulingRules(), [{}, {"B": 1}]), (PAST_ITSELF, [{"B": 1}, {"B": 1}])], ids=["0.32", "0.33"]
)
def test_the_first_in_line_can_be_the_least_urgent(
    engine: Engine, rules: SchedulingRules, steps: list[dict[str, int]]
) -> None:
    """Statement 16: A grows in s6 and is itself the victim; before 0.33 that ends the scan and B gets nothing in s6."""
    asks = [Ask("A", 8, 12, priority=9), Ask("B", 11, 12, at=1, priority=0)]
    limits = {"num_gpu_blocks": 8, "enable_prefix_caching": False, "scheduling_policy": "priority"}
    done = run(engine, asks, rules=rules, **limits)
    assert done.column("preempted")[5:7] == [["A"], []]
    assert done.tokens[5:7] == steps


def test_a_victim_gives_its_tokens_of_this_step_back(engine: Engine) -> None:
    """Budget 5: in s4 B and A have their token when C's growth puts A back; D gets 5 - 1 - 2 = 2 tokens, not 1."""
    assert behind_a_victim(engine, SchedulingRules()) == {"B": 1, "C": 2, "D": 2}


def test_older_versions_kept_a_victims_tokens(engine: Engine) -> None:
    """Before 0.11.1 the token granted to A in s4 stayed in the batch: D gets 5 - 1 - 1 - 2 = 1."""
    rules = SchedulingRules(refunds_preempted_tokens=False)
    assert behind_a_victim(engine, rules) == {"B": 1, "A": 1, "C": 2, "D": 1}


def behind_a_victim(engine: Engine, rules: SchedulingRules) -> dict[str, int]:
    """Step 4 of B and A decoding and C and D prefilling by at most 2 tokens, as blocks run out under C."""
    asks = [
        Ask("A", 2, 9, priority=9),
        Ask("B", 2, 9, priority=0),
        Ask("C", 9, 1, at=1, priority=1),
        Ask("D", 12, 1, at=1, priority=2),
    ]
    done = run(
        engine,
        asks,
        num_gpu_blocks=7,
        max_num_batched_tokens=5,
        long_prefill_token_threshold=2,
        scheduling_policy="priority",
        rules=rules,
    )
    assert done.tokens[2] == {"B": 1, "A": 1, "C": 2, "D": 1}
    assert done.column("preempted")[3] == ["A"]
    return done.tokens[3]


def test_a_waiting_request_never_preempts(engine: Engine) -> None:
    """Statement 17: urgent B8 finds 1 block free and waits until A is done at s4."""
    asks = [Ask("A", 16, 4, priority=5), Ask("B", 8, 1, at=1, priority=0)]
    done = run(engine, asks, num_gpu_blocks=6, scheduling_policy="priority")
    assert done.tokens == [{"A": 16}, {"A": 1}, {"A": 1}, {"A": 1}, {"B": 8}]


def test_admission_waits_until_the_whole_prompt_fits(engine: Engine) -> None:
    """Statement 18: B16 needs 4 blocks and 2 are free, so it waits for A, though its first chunk would fit."""
    asks = [Ask("A", 8, 12), Ask("B", 16, 2, at=2)]
    done = run(engine, asks, num_gpu_blocks=6, max_num_batched_tokens=6)
    assert done.tokens[:5] == [{"A": 6}, {"A": 2}, {"A": 1}, {"A": 1}, {"A": 1}]
    assert done.column("free_after")[2:5] == [2, 2, 2]
    assert done.column("new")[13] == ["B"]


def test_without_the_gate_a_first_chunk_is_enough(engine: Engine) -> None:
    """Statement 18: with the gate off B gets its first 5 tokens in s3 and is put back in s4."""
    asks = [Ask("A", 8, 12), Ask("B", 16, 2, at=2)]
    done = run(engine, asks, num_gpu_blocks=6, max_num_batched_tokens=6, scheduler_reserve_full_isl=False)
    assert done.tokens[2:4] == [{"A": 1, "B": 5}, {"A": 1}]
    assert done.column("preempted")[3] == ["B"]
    assert done.column("free_after")[2:4] == [0, 2]


def test_a_watermark_holds_back_admission_while_somebody_runs(engine: Engine) -> None:
    """Statement 19: 2 blocks stay free while A runs: B20 needs 5 of 6 and waits, C4 behind it; alone they are let in."""
    asks = [Ask("A", 8, 3), Ask("B", 20, 1, at=1), Ask("C", 4, 1, at=1)]
    done = run(engine, asks, num_gpu_blocks=10, watermark=0.2)
    assert done.tokens == [{"A": 8}, {"A": 1}, {"A": 1}, {"B": 20, "C": 4}]
    assert done.column("free_after") == [7, 6, 9, 9]
