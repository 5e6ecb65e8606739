"""What a replica whose answers somebody waits for does, one thing after the other: whoever follows its course lets the time pass."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from sim.cluster.endless import check_holds_nobody
from sim.engine.driven import Core
from sim.engine.metrics import Metrics, with_waiting
from sim.engine.plans import Plan
from sim.engine.request import Request
from sim.steptime.protocol import StepTimeModel

Listener = Callable[[Sequence[Request]], None]

PASS_IS_DUE: Final = 0
BATCH_IS_BACK: Final = 1
SOMEBODY_COMES: Final = 2
CALLS_ARE_OVER: Final = 3
"""What a course `awaits`: the next pass; the end of its plan, or where it has none the oldest batch in flight; what comes, as there is nothing
to do; or else the end of calls that change nothing."""


class Course:
    """It goes on at `due_s`, or where it `rests` as soon as something comes.

    Invariants: while there is a `plan`, its passes are under way and not committed; what comes cuts it to those that have begun. As in vLLM,
    requests lie in an `inbox` until the next scheduling pass. In the fleet the replica has the `number` by which errors call it.
    """

    def __init__(self, core: Core, number: int) -> None:
        self.core = core
        self.number = number
        self.inbox: list[Request] = []
        self.plan: Plan | None = None
        self.next_step_time: StepTimeModel | None = None
        self.awaits = PASS_IS_DUE
        self.due_s = core.now_s

    def tell(self, finished: Sequence[Request], at_s: float) -> None:
        """Requests have finished."""
        raise NotImplementedError

    @property
    def rests(self) -> bool:
        return self.awaits >= SOMEBODY_COMES

    def go_on(self, now_s: float) -> None:
        """Do what it awaited, up to what it awaits next."""
        core, awaited = self.core, self.awaits
        if awaited == PASS_IS_DUE:
            self._see_what_came(now_s)
            if not self._begins_pass():
                return
        elif awaited == BATCH_IS_BACK:
            self._come_back()
        elif awaited == CALLS_ARE_OVER:
            core.skip_calls(now_s)
            self._await(PASS_IS_DUE, core.now_s)
            return
        if not self.inbox and core.quiet_until_s > core.now_s:
            self._await(CALLS_ARE_OVER, core.quiet_until_s)
        else:
            self._await(PASS_IS_DUE, core.now_s)

    def _await(self, what: int, due_s: float) -> None:
        self.awaits, self.due_s = what, due_s

    def _begins_pass(self) -> bool:
        """Launch a pass; False where there is something to be awaited first."""
        core = self.core
        plan = self.plan = core.plan()
        if plan is not None:
            self._await(BATCH_IS_BACK, plan.end_s)
            return False
        if core.launch():
            return True
        if core.num_in_flight:
            self._await(BATCH_IS_BACK, core.next_collect_s)
        else:
            check_holds_nobody(core, self.number)
            self._await(SOMEBODY_COMES, inf)
        return False

    def _come_back(self) -> None:
        core, plan = self.core, self.plan
        if plan is not None:
            at_s, self.plan = plan.end_s, None
            finished = core.commit(plan)
        else:
            at_s = core.next_collect_s
            finished = core.collect()
        if finished:
            self.tell(finished, at_s)

    def _see_what_came(self, now_s: float) -> None:
        """Requests and aborts, and other step times, before the next pass."""
        core = self.core
        if self.inbox:
            core.now_s = max(core.now_s, now_s)  # requests may have arrived elsewhere before
            for request in self.inbox:
                core.add_request(request)
            self.inbox.clear()
        core.end_aborted()
        if self.next_step_time is not None:
            core.use(self.next_step_time)
            self.next_step_time = None

    def cut(self, now_s: float) -> bool:
        """Something comes: whether that cuts the plan, as passes of it that have not begun are to see it."""
        plan, core = self.plan, self.core
        if plan is None or core.num_begun(plan, now_s) == plan.num_passes:
            return False
        self.plan = core.cut(plan, now_s)
        self.due_s = self.plan.end_s
        return True

    @property
    def load(self) -> tuple[int, int]:
        waiting, running = self.core.load
        return waiting + len(self.inbox), running

    def metrics_before(self, time_s: float) -> Metrics:
        """The metrics just before a time since which nothing has changed but by the plan."""
        plan = self.plan
        shown = self.core.metrics_before(time_s) if plan is None else self.core.metrics_within(plan, time_s)
        return with_waiting(shown, len(self.inbox)) if self.inbox else shown

    def num_cached_at(self, now_s: float, request: Request) -> int:
        """Leading blocks of a request's prompt that it holds after the passes that have begun."""
        plan = self.plan
        return (
            self.core.num_cached_blocks(request) if plan is None else self.core.num_cached_within(plan, now_s, request)
        )


class ToldCourse(Course):
    """One of which a listener is told who has finished."""

    def __init__(self, core: Core, number: int, listener: Listener) -> None:
        super().__init__(core, number)
        self._listener = listener

    def tell(self, finished: Sequence[Request], at_s: float) -> None:  # noqa: ARG002 - told then
        self._listener(finished)
