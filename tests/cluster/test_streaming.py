"""A trace in parts is replayed as the trace is: the same steps, requests and gaps, however it is cut."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.streaming import StreamPart, simulate_stream, why_not_streamed
from sim.engine.request_table import COUNTS, TIMES
from sim.errors import ConfigError
from sim.workload.trace import Trace
from tests.conformance.case import RecordedStepTime
from tests.makers import ONE_SECOND, Ask, Part, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads

ROUTERS = ("round_robin", "random", "least_loaded", "power_of_two")


def cut(trace: Trace, cuts: list[int]) -> Iterator[Trace]:
    """The trace in parts of these lengths by turns."""
    first, number = 0, 0
    while first < len(trace):
        yield trace.part(first, first + cuts[number % len(cuts)])
        first, number = first + cuts[number % len(cuts)], number + 1


def streamed(trace: Trace, plan: FleetPlan, cuts: list[int], seed: int = 0) -> list[StreamPart]:
    found: list[StreamPart] = []
    simulate_stream(cut(trace, cuts), plan, found.append, seed=seed)
    return found


def without_answers(trace: Trace) -> Trace:
    """The same, where prompts quote no answers: that only sessions do, which are not streamed."""
    quotes = any(content < 0 and content % 2 == 0 for path in trace.segments or () for content, _ in path)
    return replace(trace, segments=None) if quotes else trace


@examples(150)
@given(
    workload=workloads(),
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    several=st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=6),
)
def test_parts_are_the_whole(
    workload: Workload, num_replicas: int, router: str, cuts: list[int], several: list[int]
) -> None:
    """Some requests ask for several answers, most of them where all parts have the column; not such as preempt each other for ever."""
    trace = without_answers(workload.trace)
    if max(several) > 1:
        trace = replace(trace, n=np.array([several[row % len(several)] for row in range(len(trace))]))
    plan = FleetPlan.alike(workload.config, workload.step_time, num_replicas, router)
    assume(why_not_streamed(plan, AT_THEIR_TIMES) is None)
    try:
        whole = simulate(trace, plan, seed=3)
    except ConfigError as error:
        assume("preempt each other for ever" not in str(error))
        raise
    parts = streamed(trace, plan, cuts, seed=3)
    assert_same_requests(parts, whole)
    for number in range(num_replicas):
        assert_same_engine(parts, whole, number)


def assert_same_requests(parts: list[StreamPart], whole: ClusterRecords) -> None:
    names = (*TIMES, *COUNTS, "arrival_s", "prompt_tokens", "output_tokens")
    rejected: dict[int, str] = {}
    for part, begin in zip(parts, np.cumsum([0, *(len(part.sent) for part in parts)]).tolist(), strict=False):
        rejected |= {begin + row: reason for row, reason in part.rejected.items()}
    assert rejected == whole.merged.requests.rejected
    got = [np.concatenate([getattr(part.ended.requests, name) for part in parts]) for name in names]
    got.append(np.concatenate([part.ended.replica for part in parts]))
    asked = np.setdiff1d(np.arange(len(whole.merged.requests)), list(rejected)).astype(np.int64)
    wanted = [getattr(whole.merged.requests, name)[asked] for name in names] + [whole.replica[asked]]
    np.testing.assert_array_equal(in_order(got), in_order(wanted))


def in_order(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.array(columns)[:, np.lexsort(columns)]


def assert_same_engine(parts: list[StreamPart], whole: ClusterRecords, number: int) -> None:
    engines, all_of_it = [part.engines[number] for part in parts], whole.replicas[number]
    for column in fields(all_of_it.steps):
        got = np.concatenate([getattr(engine.steps, column.name) for engine in engines])
        wanted = getattr(all_of_it.steps, column.name)
        if column.name == "num_preempted":  # of a pass that ran nothing is told with the next step, if there is one
            got, wanted = got.sum(), wanted.sum()
        np.testing.assert_array_equal(got, wanted, column.name)
    for name in ("prefix_cache_queries", "prefix_cache_hits", "num_evictions"):
        assert sum(getattr(engine, name) for engine in engines) == getattr(all_of_it, name)
    lowest = [engine.leaps.fewest_free_blocks for engine in engines if len(engine.leaps)]
    assert not lowest or min(lowest) == all_of_it.leaps.fewest_free_blocks
    got = np.concatenate([np.repeat(*engine.gaps()) for engine in engines])
    np.testing.assert_array_equal(np.sort(got), np.sort(np.repeat(*all_of_it.gaps())))


def test_requests_that_wait_from_part_to_part() -> None:
    """One request at a time, and the first takes longer than all others come: it ends in the last part, as do they."""
    trace = make_trace([Ask("long", 4, 30), *(Ask(f"r{at}", 4, 2, float(at)) for at in range(1, 7))])
    parts = streamed(trace, FleetPlan.alike(make_config(max_num_seqs=1), ONE_SECOND), [2])
    assert [len(part.ended.requests) for part in parts] == [0, 0, 0, 7]
    assert [len(part.engines[0].steps) for part in parts] == [1, 2, 2, 37]
    assert parts[-1].ended.requests.finish_s.tolist() == [30.0, 32.0, 34.0, 36.0, 38.0, 40.0, 42.0]


@pytest.mark.parametrize("router", ROUTERS)
def test_a_part_is_sent_before_the_next_is_read(router: str) -> None:
    """Whoever ended before the last request of a part came is told of with that part."""
    trace = make_trace([Ask(f"r{at}", 4, 1, 10.0 * at) for at in range(4)])
    parts = streamed(trace, FleetPlan.alike(make_config(), ONE_SECOND, 2, router), [1])
    ended = np.cumsum([len(part.ended.requests) for part in parts])
    assert (ended[:-1] <= [1, 2, 3]).all()
    assert ended[-2] > 0
    assert ended[-1] == 4


def test_a_prompt_is_found_parts_later_and_forgotten_when_it_is_evicted() -> None:
    """Room for two prompts of three blocks: the third evicts the first."""
    shared = ((0, 12),)
    asks = [
        Ask("a", shared, 1),
        Ask("b", shared, 1, 10.0),
        Ask("c", ((1, 12),), 1, 20.0),
        Ask("d", ((2, 12),), 1, 30.0),
    ]
    trace = make_trace([*asks, Ask("e", shared, 1, 40.0)])
    plan = FleetPlan.alike(make_config(num_gpu_blocks=7, max_model_len=16), ONE_SECOND)
    parts = streamed(trace, plan, [1])
    assert [part.engines[0].prefix_cache_hits for part in parts] == [0, 0, 8, 0, 0]
    assert simulate(trace, plan).merged.prefix_cache_hits == 8


def test_a_prompt_is_remembered_while_its_request_lies_at_a_busy_replica() -> None:
    """At each of two replicas, the second and the fourth of five come during the first step: the next pass sees them, parts later, and the fourth
    finds what the second has computed.
    """
    prompts: list[int | tuple[Part, ...]] = [4, ((0, 8),), 4, ((0, 8),), 4]
    trace = make_trace([Ask(f"{at}-{one}", prompt, 1, float(at)) for at, prompt in enumerate(prompts) for one in "ab"])
    plan = FleetPlan.alike(make_config(max_num_seqs=1), RecordedStepTime(10, 0, 0), 2, "power_of_two")
    parts, whole = streamed(trace, plan, [1]), simulate(trace, plan)
    assert_same_requests(parts, whole)
    hits = [sum(part.engines[number].prefix_cache_hits for part in parts) for number in range(2)]
    assert hits == [replica.prefix_cache_hits for replica in whole.replicas] == [4, 4]


def test_a_request_is_told_of_when_its_last_answer_has_come() -> None:
    """Two answers one after the other, begun in the first part and ended in the second: tokens of both, cached what the first found."""
    trace = make_trace([Ask("two", 8, 3), Ask("one", 4, 1, 4.0), Ask("late", 4, 1, 9.0)])
    trace = replace(trace, n=np.array([2, 1, 1]))
    config = make_config(max_num_seqs=1)
    parts = streamed(trace, FleetPlan.alike(config, ONE_SECOND), [2, 1])
    ended = [part.ended.requests for part in parts]
    assert [sorted(found.finish_s.tolist()) for found in ended] == [[], [6.0, 7.0, 10.0]]
    two = int(np.flatnonzero(ended[1].generated_tokens == 6)[0])
    assert (ended[1].output_tokens[two], ended[1].first_token_s[two], ended[1].num_cached_tokens[two]) == (6, 1.0, 0)


def test_of_answers_with_equal_claims_the_first_is_served_first() -> None:
    """By names, which tell them apart where all else is equal: "0_b" before "1_b", and so the one that finds nothing cached yet."""
    trace = make_trace([Ask("a", 1, 1), Ask("b", 9, 1, 1.0)])
    trace = replace(trace, n=np.array([2, 2]))
    plan = FleetPlan.alike(make_config(max_num_seqs=1, scheduling_policy="priority"), ONE_SECOND)
    parts, whole = streamed(trace, plan, [1]), simulate(trace, plan)
    assert_same_requests(parts, whole)
    assert [part.ended.requests.num_cached_tokens.tolist() for part in parts] == [[], [0, 0]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"stage": np.array([1, 2])},
            "`stage`, which is not simulated as a stream, whose requests wait for the answers",
        ),
        ({"session_id": ("s", "s")}, "`session_id`, which is not .* come at times that the trace does not tell"),
        ({"max_concurrency": np.array([1, 1])}, "`max_concurrency`, which is not .* wait for the answers"),
        ({"lora_name": ("", "poet")}, "`lora_name`, .* as the engine that brings adapters in keeps records of all"),
    ],
)
def test_columns_that_no_stream_has_are_refused_with_the_reason(changes: dict[str, Any], sentence: str) -> None:
    trace = make_trace([Ask("a", 4, 1), Ask("b", 4, 1)])
    with pytest.raises(ConfigError, match=sentence):
        streamed(replace(trace, **changes), FleetPlan.alike(make_config(), ONE_SECOND), [5])


def test_requests_of_the_base_model_are_streamed_by_that_name() -> None:
    trace = replace(make_trace([Ask("a", 4, 1), Ask("b", 4, 1)]), lora_name=("", ""))
    (part,) = streamed(trace, FleetPlan.alike(make_config(), ONE_SECOND), [5])
    assert len(part.ended.requests) == 2


def test_what_cannot_be_streamed_says_why() -> None:
    plan = FleetPlan.alike(make_config(), ONE_SECOND, 2, "consistent_hash")
    with pytest.raises(ConfigError, match="this router knows requests by the sessions or prompts of the whole trace"):
        streamed(make_trace([Ask("a", 4, 1)]), plan, [5])
    assert "clients that wait" in str(why_not_streamed(plan, Clients(max_concurrency=1)))
    unlike = FleetPlan((*plan.pools, *plan.pools))
    with pytest.raises(ConfigError, match="`stream` replays in one pass, but pools that are unlike"):
        streamed(make_trace([Ask("a", 4, 1)]), unlike, [5])
