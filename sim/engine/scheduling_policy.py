"""Scheduling policies: in which order requests wait, and which running request is preempted. A class for each policy.

Mirrors vLLM's v1/core/sched/request_queue.py and the choice of a victim in scheduler.py.
"""

from collections.abc import Sequence

from sim.engine.fair_share import FairShareQueue
from sim.engine.queues import FcfsQueue, HeapQueue, PriorityQueue, WaitingQueue, rank
from sim.engine.request import Request
from sim.engine.shortest_job import ShortestJobQueue
from sim.specs.rules import SchedulingRules


class SchedulingPolicy:
    """One policy under the rules of one vLLM version.

    `may_overtake`: whether a request that arrives may be served before others that wait. `ends_scan_at_own_preemption`: whether
    a running request that has to preempt itself is the last that the pass looks at. `ranks_by` is the column of a trace
    that tells requests apart, beside their arrival: where it says the same of all, the first to come is served first.
    """

    ranks_by: str | None = None
    may_overtake = False
    ends_scan_at_own_preemption = True

    def __init__(self, rules: SchedulingRules) -> None:
        self._rules = rules

    def make_queue(self) -> WaitingQueue:
        """An empty queue in this policy's order."""
        raise NotImplementedError

    def first_of(self, passed_over: WaitingQueue, waiting: WaitingQueue) -> WaitingQueue:  # noqa: ARG002 - a policy's choice
        """Which of two lines goes first, one of them of requests that were passed over, neither of which is empty."""
        return passed_over

    def victims_place(self, line: Sequence[Request]) -> int:
        """The place in `line`, the running requests in order of admission, of the one that is preempted first."""
        raise NotImplementedError


class Fcfs(SchedulingPolicy):
    """First come, first served; the request admitted last is preempted first."""

    def make_queue(self) -> WaitingQueue:
        return FcfsQueue()

    def victims_place(self, line: Sequence[Request]) -> int:
        return len(line) - 1


class Priority(SchedulingPolicy):
    """Smallest (priority, arrival) first; the largest is preempted first, among equals the one admitted first."""

    ranks_by: str | None = "priority"
    may_overtake = True

    def __init__(self, rules: SchedulingRules) -> None:
        super().__init__(rules)
        self.ends_scan_at_own_preemption = not rules.preempts_past_itself

    def make_queue(self) -> WaitingQueue:
        return PriorityQueue() if self._rules.orders_ties_by_id else HeapQueue()

    def first_of(self, passed_over: WaitingQueue, waiting: WaitingQueue) -> WaitingQueue:
        return waiting if rank(waiting[0]) < rank(passed_over[0]) else passed_over

    def victims_place(self, line: Sequence[Request]) -> int:
        return line.index(max(line, key=_urgency))


class ShortestJob(SchedulingPolicy):
    """A what-if: short jobs overtake long ones; the last admitted makes room."""

    ranks_by: str | None = "output_tokens"
    may_overtake = True

    def make_queue(self) -> WaitingQueue:
        return ShortestJobQueue()

    def victims_place(self, line: Sequence[Request]) -> int:
        return len(line) - 1


class FairShare(SchedulingPolicy):
    """A what-if: the client served least overtakes the others; the last admitted makes room. Only the engine that walks keeps its accounts."""

    ranks_by: str | None = "client"
    may_overtake = True

    def make_queue(self) -> WaitingQueue:
        return FairShareQueue()

    def victims_place(self, line: Sequence[Request]) -> int:
        return len(line) - 1


def _urgency(request: Request) -> tuple[int, float]:
    return (request.priority, request.arrival_s)


POLICIES: dict[str, type[SchedulingPolicy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "sjf": ShortestJob,
    "fair_share": FairShare,
}


def scheduling_policy(name: str, rules: SchedulingRules) -> SchedulingPolicy:
    """The policy of that name under the rules of a vLLM version."""
    return POLICIES[name](rules)
