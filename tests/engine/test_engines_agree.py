"""The engine that leaps and the one that walks every request in every step are one engine."""

from dataclasses import dataclass, fields
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import leaps
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.records import EngineRecords, Records
from sim.errors import EngineCrashError
from sim.specs.rules import SchedulingRules
from sim.steptime.linear import LinearDecodeCurve
from sim.steptime.protocol import DecodeCurve, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.conformance.case import RecordedStepTime
from tests.engine.test_metamorphic import facts
from tests.engines import ENGINES
from tests.makers import ONE_SECOND, Ask, make_config, make_trace, replay
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads

OTHERS = sorted(set(ENGINES) - {"reference"})


def assert_agreement(engine: str, trace: Trace, config: SchedulerConfig, step_time: StepTimeModel) -> None:
    """Schedules, preemptions, blocks, evictions, queues, times and records are equal, to the bit where times are.

    Where the simulated vLLM crashes, both say so. Whether anybody reads the step log makes no difference to the records.
    """
    try:
        naive = replay(ENGINES["reference"], trace, config, step_time)
    except EngineCrashError:
        with pytest.raises(EngineCrashError):
            replay(ENGINES[engine], trace, config, step_time)
        return
    logged = replay(ENGINES[engine], trace, config, step_time)
    one, other = facts(logged), facts(naive)
    for got, expected in zip(one["steps"], other["steps"], strict=False):
        assert got == expected
    assert repr(one) == repr(other)
    assert_same_steps(logged.records, naive.records)
    assert_same_records(ENGINES[engine](trace, config, step_time), logged.records)


def assert_same_records(one: Records, other: Records) -> None:
    """All that the records say of requests, steps, gaps and the cache, to the bit."""
    for column in fields(one.requests):
        np.testing.assert_array_equal(getattr(one.requests, column.name), getattr(other.requests, column.name))
    assert_same_steps(one, other)
    for got, expected in zip(one.gaps(), other.gaps(), strict=True):
        np.testing.assert_array_equal(got, expected)
    for name in ("prefix_cache_queries", "prefix_cache_hits", "num_evictions"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def assert_same_steps(one: EngineRecords, other: EngineRecords) -> None:
    """Every step's times, work, queues and blocks, and what is made of them all."""
    for column in fields(one.steps):
        np.testing.assert_array_equal(getattr(one.steps, column.name), getattr(other.steps, column.name))
    assert one.leaps.num_ran_steps == other.leaps.num_ran_steps
    assert one.num_evictions == other.num_evictions
    if len(one.steps):
        assert one.leaps.busy_s == other.leaps.busy_s
        assert one.leaps.fewest_free_blocks == other.leaps.fewest_free_blocks


@dataclass(frozen=True, slots=True)
class Telling:
    """Step times that also tell how many tokens were sampled and how many prompts there were, and of what length."""

    plain: RecordedStepTime

    def step_s(self, shape: StepShape) -> float:
        chunks = sum(5 + tokens**2 for tokens, _ in shape.chunks)
        return self.plain.step_s(shape) + 3 * shape.num_sampled + chunks

    def decode_curve(self, num_decodes: int) -> LinearDecodeCurve:
        plain = self.plain.decode_curve(num_decodes)
        return LinearDecodeCurve(plain.constant_s + 3 * num_decodes, plain.per_context_token_s)


@pytest.mark.parametrize("engine", OTHERS)
@examples(200)
@given(workload=workloads(may_crash=True), panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))))
def test_engines_agree_on_every_step(engine: str, workload: Workload, panel_bits: tuple[int, ...]) -> None:
    """Integer times leave no rounding, so that nothing may differ; wide panels, so that leaps are long at short contexts."""
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        assert_agreement(engine, workload.trace, workload.config, Telling(workload.step_time))


@st.composite
def chunked(draw: st.DrawFn) -> tuple[Trace, SchedulerConfig]:
    """Prompts of many chunks beside decodes, shared in part, with windows and with hardly more blocks than the longest takes."""
    budget, block_size = draw(st.integers(4, 12)), draw(st.sampled_from((1, 2, 4)))
    asks, at = [], 0
    for row in range(draw(st.integers(2, 6))):
        at += draw(st.sampled_from((0, 1, 3, 9, 25)))
        shared, own = draw(st.just(1) | st.integers(1, 5 * budget)), draw(st.just(1) | st.integers(1, 4 * budget))
        asks.append(Ask(f"r{row}", ((draw(st.integers(0, 1)), shared), (10 + row, own)), draw(st.integers(1, 40)), at))
    trace = make_trace(asks)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    groups = draw(
        st.sampled_from([(KVGroup(window=5),), (KVGroup(), KVGroup(window=3)), (KVGroup(window=12), KVGroup())])
    )
    config = make_config(
        num_gpu_blocks=-(-longest // block_size) * len(groups) + draw(st.integers(2, 24)),
        block_size=block_size,
        kv_groups=groups,
        max_model_len=longest + 1,
        max_num_batched_tokens=budget,
        async_scheduling=draw(st.booleans()),
        enable_prefix_caching=draw(st.integers(0, 3)) > 0,
    )
    return trace, config


@examples(300)
@given(workload=chunked(), panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))))
def test_engines_agree_on_prompts_of_many_chunks_beside_windows(
    workload: tuple[Trace, SchedulerConfig], panel_bits: tuple[int, ...]
) -> None:
    """Chunks pass blocks as they fill them, decodes pass others in the same pass, and whoever makes room asks for all again."""
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        assert_agreement("fast", *workload, ONE_SECOND)


@dataclass(frozen=True, slots=True)
class Kneed:
    """A roofline of sorts, in seconds: attention is hidden behind the rest up to some context, and bends beyond."""

    knee: float
    bend: float

    def step_s(self, shape: StepShape) -> float:
        context = shape.decode_context_tokens + sum(tokens + computed for tokens, computed in shape.chunks)
        return self.at(context) + 1e-5 * shape.num_tokens

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return KneedCurve(self, 1e-5 * num_decodes)

    def at(self, context: float) -> float:
        return max(0.01, 0.01 + 3e-6 * (context - self.knee) + self.bend * context**2)


@dataclass(frozen=True, slots=True)
class KneedCurve:
    model: Kneed
    rest_s: float

    def at(self, context_tokens: float) -> float:
        return self.model.at(context_tokens) + self.rest_s


@pytest.mark.parametrize("engine", OTHERS)
@examples(50)
@given(
    lengths=st.lists(st.tuples(st.integers(10, 900), st.integers(1, 300)), min_size=1, max_size=4),
    knee=st.integers(0, 3000),
    bend=st.sampled_from((0.0, 1e-12)),
    async_scheduling=st.booleans(),
)
def test_long_decodes_end_at_the_same_times(
    engine: str, lengths: list[tuple[int, int]], knee: int, bend: float, async_scheduling: bool
) -> None:
    """Steps are taken together where their times follow a curve, with a knee in it or not: to 1e-9 of each."""
    asks = [Ask(f"r{row}", prompt, output, at=0.37 * row) for row, (prompt, output) in enumerate(lengths)]
    config = make_config(max_model_len=2000, num_gpu_blocks=4000, async_scheduling=async_scheduling)
    runs = [replay(ENGINES[name], make_trace(asks), config, Kneed(knee, bend)) for name in (engine, "reference")]
    assert runs[0].tokens == runs[1].tokens
    for fact in ("t", "start", "end"):
        np.testing.assert_allclose(runs[0].column(fact), runs[1].column(fact), rtol=1e-9)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_the_older_order_of_freed_blocks_in_two_groups(engine: str) -> None:
    """A's tables are [hashed, not] and [hashed, not]: vLLM frees them one after the other, 4, 3 before 2, 1."""
    asks = [Ask("A", 4, 1), Ask("B", 1, 1, at=1), Ask("C", 1, 1, at=2), Ask("D", 1, 1, at=3)]
    rules = SchedulingRules(unhashed_blocks_first=False)
    config = make_config(num_gpu_blocks=5, block_size=3, max_model_len=9, kv_groups=(KVGroup(), KVGroup()), rules=rules)
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_head_that_can_be_admitted_as_its_hit_is_evicted(engine: str) -> None:
    """B's first 6 tokens beyond its hit need 12 blocks, and what of the hit stands free counts too: less each time A grows."""
    asks = [Ask("A", ((0, 1),), 18), Ask("B", ((0, 1),), 10)]
    config = make_config(
        max_num_seqs=2,
        max_num_scheduled_tokens=6,
        max_model_len=20,
        num_gpu_blocks=39,
        block_size=1,
        kv_groups=(KVGroup(), KVGroup()),
        scheduler_reserve_full_isl=False,
    )
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_head_that_finds_what_another_computed_twice(engine: str) -> None:
    """A computes B's second chunk again after B, who is preempted. As A grows into B's older copies, a lookup of B finds A's: B needs fewer free blocks."""
    asks = [Ask("C", 1, 4), Ask("A", ((0, 8),), 5), Ask("B", ((0, 8), (1, 3)), 2)]
    config = make_config(
        num_gpu_blocks=17, block_size=1, max_model_len=40, max_num_seqs=3, long_prefill_token_threshold=4
    )
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_prompt_that_fills_the_budget_until_the_threshold_changes(engine: str) -> None:
    """A decodes and B has the other 3 tokens of each pass, until C, D and E wait too: 12 // 5 are 2."""
    asks = [Ask("A", 1, 12), Ask("B", 40, 2), *(Ask(name, 9, 2, at=4) for name in "CDE")]
    config = make_config(
        max_num_seqs=2,
        max_num_batched_tokens=12,
        max_num_scheduled_tokens=4,
        long_prefill_token_threshold=1,
        long_prefill_token_threshold_adaptive=True,
        async_scheduling=True,
    )
    assert replay(ENGINES["reference"], make_trace(asks), config, ONE_SECOND).tokens[3:6:2] == [
        {"A": 1, "B": 3},
        {"A": 1, "B": 2},
    ]
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("is_async", [True, False])
def test_engines_agree_on_prompts_that_fill_the_budget_while_windows_pass_blocks(engine: str, is_async: bool) -> None:
    """B's chunks pass blocks of a prompt that A has too; what both have left behind is evicted for them, or found by D."""
    shared = ((0, 40), (1, 20))
    asks = [
        Ask("A", shared, 30),
        Ask("B", (*shared, (2, 60)), 10, at=3),
        Ask("C", 90, 5, at=4),
        Ask("D", shared, 3, at=50),
    ]
    for num_gpu_blocks in (80, 60, 50):
        config = make_config(
            num_gpu_blocks=num_gpu_blocks,
            kv_groups=(KVGroup(), KVGroup(window=9)),
            max_num_batched_tokens=10,
            max_model_len=200,
            async_scheduling=is_async,
        )
        assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_prompt_that_holds_what_another_request_is_decoding(engine: str) -> None:
    """C repeats B's first outputs: block by block it depends on who was first whose copy is found, and which is evicted."""
    asks = [Ask("A", 1, 1), Ask("B", 1, 6), Ask("C", (("B", 4), (9, 3)), 3), Ask("D", 1, 1), Ask("E", 1, 1)]
    config = make_config(
        max_num_batched_tokens=3, block_size=1, num_gpu_blocks=11, max_model_len=11, scheduler_reserve_full_isl=False
    )
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("is_async", [True, False])
def test_engines_agree_on_windows_of_a_decode_that_starved(engine: str, is_async: bool) -> None:
    """When C has ended, A may have 8 // 2 tokens, all of the budget; B starves until A's prompt is done, and goes on."""
    asks = [Ask("A", 24, 2), Ask("B", 1, 10), Ask("C", 1, 4)]
    config = make_config(
        max_num_batched_tokens=8,
        max_num_scheduled_tokens=4,
        long_prefill_token_threshold=1,
        long_prefill_token_threshold_adaptive=True,
        kv_groups=(KVGroup(window=3),),
        block_size=1,
        enable_prefix_caching=False,
        async_scheduling=is_async,
    )
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_head_whose_chunk_fits_as_somebody_arrives_behind_it(engine: str) -> None:
    """B may have 24 // 2 tokens, for which there are no 3 blocks; when C comes 24 // 3, and 2 blocks there are."""
    asks = [Ask("A", 20, 12), Ask("B", 20, 2, at=3), Ask("C", 4, 2, at=3.5)]
    config = make_config(
        max_num_batched_tokens=24,
        long_prefill_token_threshold=1,
        long_prefill_token_threshold_adaptive=True,
        num_gpu_blocks=9,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
    )
    assert replay(ENGINES["reference"], make_trace(asks), config, ONE_SECOND).tokens[4]["B"] == 8
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_head_that_fits_once_a_decode_has_filled_a_block_of_its_prompt(engine: str) -> None:
    """B, who goes on from A's 8th output, lacks a block of 4 until the block of A's first four outputs is full, in pass 4."""
    asks = [Ask("A", 4, 12), Ask("B", (("A", 12), (9, 4)), 1, at=0.5)]
    config = make_config(num_gpu_blocks=5, max_model_len=17)
    assert replay(ENGINES["reference"], make_trace(asks), config, ONE_SECOND).steps[4]["hits"] == {"B": 8}
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
def test_engines_agree_on_a_decode_of_which_more_is_asked_for_than_somebody_has_looked_at(engine: str) -> None:
    """C comes when two blocks of A are full, and B, who goes on from the third, when that is full too."""
    asks = [Ask("A", 4, 16), Ask("C", (("A", 4), (8, 4)), 1, at=6), Ask("B", (("A", 12), (9, 4)), 1, at=12)]
    done = replay(ENGINES[engine], make_trace(asks), make_config(), ONE_SECOND)
    assert [step["hits"] for step in done.steps if step["hits"]] == [{"C": 4}, {"B": 12}]
    assert_agreement(engine, make_trace(asks), make_config(), ONE_SECOND)


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize(("tokens", "outputs", "num_gpu_blocks"), [(16, (1, 7, 3), 9), (8, (10, 5, 2), 6)])
def test_engines_agree_on_a_victim_that_had_filled_the_same_block_in_this_pass(
    engine: str, tokens: int, outputs: tuple[int, int, int], num_gpu_blocks: int
) -> None:
    """A and B compute one prompt side by side. B fills a block after A and makes room for C: A's copy is the older one."""
    asks = [
        Ask("A", ((0, tokens),), outputs[0]),
        Ask("B", ((0, tokens), (1, 2)), outputs[1], priority=1),
        Ask("C", tokens, outputs[2], priority=1),
    ]
    config = make_config(
        num_gpu_blocks=num_gpu_blocks,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=3,
        scheduling_policy="priority",
        max_model_len=200,
        scheduler_reserve_full_isl=tokens == 8,
    )
    assert_agreement(engine, make_trace(asks), config, ONE_SECOND)
