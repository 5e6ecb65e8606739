"""Data-parallel ranks of a mixture of experts, which step together, in time: they catch up when a request comes, or run as a process.

Both do the same steps at the same times. What a step is says sim/engine/rank_group.py. Deliberate difference: the messages of
vLLM's coordinator (v1/engine/coordinator.py) take no time.
"""

import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, PASS, At, at_replica
from sim.cluster.replica import HALT
from sim.engine.balancer import Balancers
from sim.engine.core import EngineCore
from sim.engine.driven import Abort
from sim.engine.metrics import NOTHING_SHOWN, Metrics, with_waiting
from sim.engine.rank_group import Finished, RankGroup, StepsAhead
from sim.engine.request import Request
from sim.engine.ticks import Ticks
from sim.engine.walking.core import WalkingCore
from sim.steptime.protocol import StepTimeModel

Listener = Callable[[int, Sequence[Request]], None]


RankCore = EngineCore | WalkingCore
"""A rank's engine: one that leaps or one that walks."""


class Group(Protocol):
    """What ranks that step together show."""

    @property
    def shown(self) -> Sequence[Metrics]: ...

    def num_cached_blocks(self, rank: int, request: Request) -> int: ...


GroupT = TypeVar("GroupT", bound=Group)


class Rank:
    """A rank as its server's balancer sees it: a Replica. Requests lie in its inbox until the next step."""

    pool: int = 0

    def __init__(self, ranks: "Ranks[GroupT]", core: RankCore, number: int) -> None:
        self.number = number
        self.core = core
        self.inbox: list[Request] = []
        self._ranks = ranks

    def submit(self, *answers: Request) -> None:
        self._ranks.take(self, answers)

    @property
    def load(self) -> tuple[int, int]:
        waiting, running = self._ranks.load(self)
        return waiting + len(self.inbox), running

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002 - a replica's interface
        return self._ranks.metrics(self)

    def wake(self) -> None:
        """KV that goes from here has been fetched, or is not kept any longer."""
        self._ranks.wake()

    def num_cached_blocks(self, request: Request) -> int:
        return self._ranks.num_cached_blocks(self, request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        self._ranks.look()
        return self.core.num_offloaded_blocks(request, num_cached_blocks)


class Ranks(Generic[GroupT]):
    """What both kinds have in common: the ranks, who is told of those that finish, and what they showed when the fleet's router `looks`."""

    def __init__(
        self, cores: Sequence[RankCore], group: GroupT, on_finished: Listener, looks: Ticks | None = None
    ) -> None:
        self.replicas = [Rank(self, core, number) for number, core in enumerate(cores)]
        self._group = group
        self._on_finished = on_finished
        self._looks = looks
        self._seen = [NOTHING_SHOWN] * len(cores)

    def take(self, rank: Rank, answers: Sequence[Request]) -> None:
        """Requests come to a rank."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let ranks that pause see what has come."""
        raise NotImplementedError

    def load(self, rank: Rank) -> tuple[int, int]:
        """Of its engine, after the steps that came back by now."""
        raise NotImplementedError

    def look(self) -> None:
        """Somebody looks at what is in host memory."""
        raise NotImplementedError

    def num_cached_blocks(self, rank: Rank, request: Request) -> int:
        """What a rank holds of a request's prompt."""
        return self._group.num_cached_blocks(rank.number, request)

    def catch_up(self, now_s: float) -> None:
        """A request comes: of those that live, the clock sees to what is due before."""

    def finish(self) -> None:
        """No more requests will come: of those that live, the clock sees to the rest."""

    def metrics(self, rank: Rank) -> Metrics:
        """What a rank showed at the balancer's last scrape."""
        self._show()
        return self._group.shown[rank.number]

    def seen(self, front: int) -> Metrics:
        """What a rank showed when the fleet's router looked last."""
        self._show()
        return self._seen[front]

    def _show(self) -> None:
        """Keep what those that live showed at the last scrapes, before they are asked and before anything changes."""

    def _tell(self, finished: Sequence[Finished]) -> None:
        for rank, requests in finished:
            self._on_finished(rank, requests)


class LazyRanks(Ranks[RankGroup]):
    """Ranks whose answers no client waits for: they catch up before a request is routed, and tell who has finished by then."""

    _now_s = -math.inf

    def catch_up(self, now_s: float) -> None:
        looks = self._looks
        if looks is not None and looks.passed(now_s):
            self._tell(self._group.catch_up(looks.last_s, keeps_plan=True))
            self._seen = self._group.metrics(looks.last_s)
        self._now_s = now_s
        self._tell(self._group.catch_up(now_s))

    def serve(self, answers: Sequence[Request], balancers: Balancers) -> Sequence[Finished]:
        """Requests come, and the balancers choose a rank for each; who has finished by now and was not told of."""
        self._now_s = answers[0].arrival_s
        return self._group.serve(answers, balancers)

    def take(self, rank: Rank, answers: Sequence[Request]) -> None:
        for request in answers:
            rank.core.add_request(request)
        if self._group.is_paused:
            self._group.begin(answers[0].arrival_s)

    def load(self, rank: Rank) -> tuple[int, int]:
        return rank.core.load_before(self._now_s)

    def wake(self) -> None:
        """Ranks that hand KV over are live."""

    def look(self) -> None:
        """They have caught up."""

    def finish(self) -> None:
        self._tell(self._group.advance(math.inf))


class LiveRanks(Ranks[RankGroup]):
    """Ranks as a process, which sleeps while their next steps are certain, wakes on arrivals, and reports requests as they finish.

    Invariant: while there are steps ahead, the process sleeps until their end; what comes cuts them to those that have begun. In the fleet
    the `first` rank has that number.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cores: Sequence[RankCore],
        group: RankGroup,
        on_finished: Listener,
        looks: Ticks | None,
        first: int,
    ) -> None:
        super().__init__(cores, group, on_finished, looks)
        self._env = env
        self._called, self._back = at_replica(PASS, first), at_replica(ANSWER, first)
        self._is_woken = self._has_aborts = False
        self._next_step_time: StepTimeModel | None = None
        self._idle = env.event()
        self._process = env.process(self._run())

    def load(self, rank: Rank) -> tuple[int, int]:
        return rank.core.load

    def look(self) -> None:
        self._group.poll_before(self._env.now)

    def _show(self) -> None:
        """Something is about to change: keep what was shown at the last scrapes, requests in inboxes included."""
        group, looks = self._group, self._looks
        if looks is not None and looks.passed(self._env.now):
            self._seen = self._with_inboxes(group.metrics(looks.last_s))
        if group.show(self._env.now):
            group.shown = self._with_inboxes(group.shown)

    def _with_inboxes(self, shown: Sequence[Metrics]) -> list[Metrics]:
        return [with_waiting(of_rank, len(rank.inbox)) for of_rank, rank in zip(shown, self.replicas, strict=True)]

    def take(self, rank: Rank, answers: Sequence[Request]) -> None:
        self._show()
        rank.inbox += answers
        self.wake()

    def wake(self) -> None:
        """Let the steps that have not begun see what has come."""
        ahead = self._group.ahead
        if ahead is not None and not self._is_woken:
            if self._group.num_begun(ahead, self._env.now) < ahead.num_passes:
                self._is_woken = True
                self._process.interrupt()
        elif not self._idle.triggered:
            self._idle.succeed()

    def abort(self, rank: int, answer: Request, reason: str) -> None:
        """End an answer that was submitted to a rank, as a replica does (sim/cluster/replica.py)."""
        self._show()
        one = self.replicas[rank]
        if answer in one.inbox:
            one.inbox.remove(answer)
            one.core.refuse(answer, reason)
        else:
            one.core.abort(Abort(answer, reason, self._env.now))
            self._has_aborts = True
            self.wake()

    def refuse(self, answer: Request, reason: str) -> None:
        """Record one as failed that has come to no rank; with the first."""
        self.replicas[0].core.refuse(answer, reason)

    def use(self, step_time: StepTimeModel) -> None:
        """Steps that have not begun take other times from now on."""
        self._show()
        self._next_step_time = step_time
        self.wake()

    def halt(self) -> dict[Request, int]:
        """All ranks are lost now, and what is on their devices: the tokens that each request has returned."""
        if self._group.ahead is not None:
            self._group.stop_within(self._group.ahead, self._env.now)
        returned: dict[Request, int] = {}
        for rank in self.replicas:
            returned |= rank.core.halt() | dict.fromkeys(rank.inbox, 0)
            rank.inbox.clear()
        self._process.interrupt(HALT)
        return returned

    @property
    def engines_now(self) -> Sequence[Metrics]:
        """What each shows after all that has come back by now and before the steps of this instant."""
        group, now_s = self._group, self._env.now
        group.poll_before(now_s)
        ahead = group.ahead
        return self._with_inboxes(
            [
                rank.core.metrics_within(ahead.of_a_rank, now_s)
                if ahead and ahead.ranks.counts[rank.number]
                else rank.core.metrics_before(math.inf)
                for rank in self.replicas
            ]
        )

    def _run(self) -> Process:
        try:
            yield from self._serve()
        except simpy.Interrupt:  # halted
            self._group.ahead = None

    def _serve(self) -> Process:
        env, group = self._env, self._group
        while True:
            if group.is_paused:
                yield from self._sleep()
            if group.now_s > env.now or env.peek() <= env.now:  # else no request can arrive before the step
                yield At(env, max(env.now, group.now_s), self._called)
            self._show()
            self._see_what_came()
            group.ahead = group.plan()
            if group.ahead is not None:
                yield from self._leap(group.ahead)
            else:
                yield from self._step()
            group.look()

    def _sleep(self) -> Process:
        """Until a request comes, with which a wave begins; or one is aborted that all the others wait behind."""
        self._has_aborts = False  # those that were have been dealt with, since nobody has work
        while not (self._has_aborts or any(rank.inbox for rank in self.replicas)):
            if self._group.polls:
                yield from self._poll()
            else:
                yield self._rest()
        self._group.begin(self._env.now)

    def _poll(self) -> Process:
        """Ranks hold KV for others: their next calls, and until the next ones may hear of something."""
        env, group = self._env, self._group
        yield At(env, max(env.now, group.now_s), self._called)
        if any(rank.inbox for rank in self.replicas):
            return
        self._show()
        group.poll()
        if group.ends_s:
            yield At(env, group.ends_s[0], self._back)
            self._show()
            self._tell(group.collect())
        if group.polls and group.next_transfer_end_s > env.now:
            yield self._rest()
            group.skip_polls(env.now)

    def _rest(self) -> simpy.Event:
        """Happens when something comes."""
        self._idle = self._env.event()
        return self._idle

    def _step(self) -> Process:
        """One step of all ranks, and what comes back with the one before if it has to be waited for."""
        group = self._group
        is_launched = group.launch()
        self._tell(group.ended())
        if is_launched and group.is_full:
            yield At(self._env, group.ends_s[0], self._back)
            self._show()
            self._tell(group.collect())

    def _leap(self, plan: StepsAhead) -> Process:
        """Sleep until the plan is done, or what had begun of it when a request came."""
        try:
            yield At(self._env, plan.end_s, self._back)
        except simpy.Interrupt as interrupt:
            if interrupt.cause is HALT:
                raise
            plan = self._group.ahead = self._group.cut(plan, self._env.now)
            yield At(self._env, plan.end_s, self._back)
        self._show()
        self._is_woken = False
        if self._has_aborts:  # one that is due may change what the last step brings back
            self._group.commit_but_one(plan)
            self._group.launch()
            self._tell(self._group.collect())
        else:
            self._tell(self._group.commit(plan))

    def _see_what_came(self) -> None:
        """Requests and aborts, and other step times, before the next step."""
        for rank in self.replicas:
            for request in rank.inbox:
                rank.core.add_request(request)
            rank.inbox.clear()
            rank.core.end_aborted()
        self._has_aborts = False
        if self._next_step_time is not None:
            self._group.use(self._next_step_time)
            self._next_step_time = None
