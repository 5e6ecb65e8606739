"""SGLang's tree of what workers were sent."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.routers.prompts import PromptTree
from sim.cluster.routers.sglang import WorkerTree
from sim.cluster.simulation import simulate
from sim.workload.trace import Trace
from tests.cluster.routers.makers import CONFIG, Requests, Shown, prompts
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference.front_door import make_requests
from tests.reference.routers import SglangCacheAware
from tests.workloads import conversations, traces


def test_a_tree_is_cut_at_the_ends_that_were_used_longest_ago() -> None:
    """80 characters are 20 tokens: the head stays with the tail that was sent last."""
    head = (1, 10)
    trace = prompts((head, (2, 10)), (head, (3, 10)), (head, (2, 10)), (head, (3, 10)))
    asked = Requests(
        "sglang_cache_aware:max_tree_size=80,eviction_interval_s=2,cache_threshold=0.6", trace, [Shown(), Shown()]
    )
    assert [asked.choose(0), asked.choose(1)] == [0, 1]  # half of the second is known, which is not enough
    assert [asked.choose(2), asked.choose(3)] == [0, 1]


def test_a_head_without_tails_is_as_old_as_its_own_last_use() -> None:
    """Sent: head and tail at 1, another prompt at 2; the head is used at 3. The tail goes first, then the other prompt."""
    known = PromptTree([((1, 10), (2, 10)), ((1, 10), (3, 10)), ((4, 10),)])
    tree = WorkerTree(known, 1)
    tree.insert(known.path(0), 0, 1.0)
    tree.insert(known.path(2), 0, 2.0)
    assert tree.match(known.path(1), 3.0) == (10, 0)
    tree.evict(10)
    assert tree.match(known.path(1), 4.0) == (10, 0)
    assert tree.match(known.path(2), 4.0) == (0, 0)


def test_an_imbalance_sends_to_the_shortest_queue() -> None:
    same = prompts(*[((1, 100),)] * 6)
    assert Requests("sglang_cache_aware:balance_abs_threshold=2", same, [Shown(), Shown()]).all() == [0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ({"autoscale": {"policy": "schedule", "times": [[0, 2], [10, 1], [20, 2]]}}, [0, 1, 0, 0, 1, 1, 1, 0]),
        ({"faults": [{"at_s": 10, "replica": 1, "for_s": 10}]}, [0, 1, 0, 0, 1, 1, 0, 1]),
    ],
)
def test_a_new_worker_was_sent_nothing_and_one_that_was_lost_what_it_was(
    changes: dict[str, Any], replicas: list[int]
) -> None:
    """Prompts of ten tokens that nobody knows go where the fewest were sent: 30 and none, or 30 and 10, when the second stands again."""
    trace = make_trace([Ask(str(at_s), 10, 1, at_s) for at_s in (0, 1, 11, 12, 21, 22, 23, 24)])
    dynamics = Dynamics.parse(changes)
    plan = FleetPlan.alike(make_config(), ONE_SECOND, 2, "sglang_cache_aware", dynamics=dynamics, start_up_s=0.0)
    assert simulate(trace, plan).replica.tolist() == replicas


@examples(200)
@given(
    trace=traces(max_requests=20) | conversations(max_requests=20),
    num_workers=st.integers(2, 3),
    max_tree_size=st.integers(1, 200),
    eviction_interval_s=st.sampled_from((1, 5, 40)),
    cache_threshold=st.sampled_from((0.0, 0.3, 0.7)),
    balance_abs_threshold=st.sampled_from((1, 64)),
)
def test_trees_forget_what_naive_ones_do(trace: Trace, num_workers: int, **options: float) -> None:
    """Nobody answers; trees are cut so often that most of a trace's choices are made by what is left of them."""
    given = ",".join(f"{name}={value}" for name, value in options.items())
    asked = Requests(f"sglang_cache_aware:{given}", trace, [Shown()] * num_workers)
    naive = SglangCacheAware(trace, CONFIG, num_workers, Random(0), options)  # noqa: S311
    for request in make_requests(trace, CONFIG):
        chosen = naive.choose(request, [])
        assert asked.choose(request.index) == chosen
        naive.sent.append((request, chosen))
