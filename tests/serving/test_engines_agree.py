"""The engine that leaps and the one that walks every request in every step are one engine."""

import pytest
from hypothesis import assume, given, settings

from sim.serving.config import KVGroup, SchedulerConfig
from sim.specs.rules import SchedulingRules
from sim.workload.trace import Trace
from tests.conformance.case import RecordedStepTime
from tests.engines import ENGINES
from tests.makers import ONE_SECOND, Ask, make_config, make_trace, replay
from tests.serving.test_metamorphic import facts
from tests.workloads import Workload, workloads

OTHERS = sorted(set(ENGINES) - {"reference"})


def assert_agreement(engine: str, trace: Trace, config: SchedulerConfig, step_time: RecordedStepTime) -> None:
    """Schedules, preemptions, blocks, evictions, queues, times and records are equal, to the bit where times are."""
    one, other = (facts(replay(ENGINES[name], trace, config, step_time)) for name in (engine, "reference"))
    for got, expected in zip(one["steps"], other["steps"], strict=False):
        assert got == expected
    assert repr(one) == repr(other)


@pytest.mark.parametrize("engine", OTHERS)
@settings(max_examples=300)
@given(workload=workloads())
def test_engines_agree_on_every_step(engine: str, workload: Workload) -> None:
    """Integer times leave no rounding, so that nothing may differ."""
    assume(not is_known_to_differ(workload.config))
    assert_agreement(engine, *workload)


def is_known_to_differ(config: SchedulerConfig) -> bool:
    """Where the two tests below expect to fail; each clause goes with its test."""
    releases_groups_as_one = len(config.kv_groups) > 1 and not config.rules.unhashed_blocks_first
    misses_shrinking_needs = config.enable_prefix_caching and not config.scheduler_reserve_full_isl
    return releases_groups_as_one or misses_shrinking_needs


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
