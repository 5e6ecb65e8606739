"""Who is served next and who makes room, by policy and version."""

import pytest

from sim.engine.queues import FcfsQueue, HeapQueue, PriorityQueue
from sim.engine.request import Request
from sim.engine.scheduling_policy import POLICIES, scheduling_policy
from sim.specs.engine import ARGUMENTS
from sim.specs.rules import SchedulingRules

LINE = [Request(row, name, at, 1, 1, priority=rank) for row, (name, at, rank) in enumerate(
    [("A", 0.0, 1), ("B", 1.0, 2), ("C", 1.0, 2), ("D", 2.0, 0)]
)]  # fmt: skip


def test_every_policy_that_an_engine_can_be_given_is_in_the_table() -> None:
    """What the engine's arguments allow is what schedules."""
    assert tuple(POLICIES) == ARGUMENTS["scheduling_policy"].choices


@pytest.mark.parametrize(("name", "place"), [("fcfs", 3), ("priority", 1), ("sjf", 3)])
def test_who_makes_room(name: str, place: int) -> None:
    """The last admitted; or the largest (priority, arrival), of B and C the first in line."""
    assert scheduling_policy(name, SchedulingRules()).victims_place(LINE) == place


def test_priority_follows_the_rules_of_the_version() -> None:
    """Before 0.12 the queue is a heap that cannot order ties; in some versions the scan goes on after a request preempts itself."""
    old = scheduling_policy("priority", SchedulingRules(orders_ties_by_id=False, preempts_past_itself=True))
    new = scheduling_policy("priority", SchedulingRules())
    assert (type(old.make_queue()), type(new.make_queue())) == (HeapQueue, PriorityQueue)
    assert (old.ends_scan_at_own_preemption, new.ends_scan_at_own_preemption) == (False, True)


def test_first_come_first_served_is_the_same_in_all() -> None:
    """Nobody overtakes, and who preempts itself was the last in line."""
    policy = scheduling_policy("fcfs", SchedulingRules(orders_ties_by_id=False, preempts_past_itself=True))
    assert type(policy.make_queue()) is FcfsQueue
    assert (policy.may_overtake, policy.ends_scan_at_own_preemption) == (False, True)
