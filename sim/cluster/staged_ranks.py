"""Data-parallel ranks with pipeline stages in lock step, in time: they catch up when a request comes, or run as a process.

Both do the same things at the same times. What they do says sim/engine/staged_group.py.
"""

import math
from collections.abc import Sequence

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, PASS, At, at_replica
from sim.cluster.lock_step import Listener, Rank, Ranks
from sim.engine.request import Request
from sim.engine.staged_group import StagedGroup
from sim.engine.staged_loop import CALL
from sim.engine.ticks import Ticks
from sim.engine.walking.staged_rank import StagedRank


class StagedRanks(Ranks[StagedGroup]):
    """What both kinds have in common."""

    def load(self, rank: Rank) -> tuple[int, int]:
        return self._group.load(rank.number)

    def look(self) -> None:
        """Nothing is in host memory."""

    def wake(self) -> None:
        """No KV goes from here."""


class LazyStagedRanks(StagedRanks):
    """Ranks whose answers no client waits for."""

    def catch_up(self, now_s: float) -> None:
        looks = self._looks
        if looks is not None and looks.passed(now_s):
            self._tell(self._group.catch_up(looks.last_s))
            self._seen = self._group.metrics(looks.last_s)
        self._tell(self._group.catch_up(now_s))

    def take(self, rank: Rank, answers: Sequence[Request]) -> None:
        self._group.take(rank.number, answers, answers[0].arrival_s)

    def finish(self) -> None:
        self._tell(self._group.advance(math.inf))


class LiveStagedRanks(StagedRanks):
    """Ranks as a process, which sleeps until one of them does something; what they all do before anything else can happen is done at once.

    In the fleet the `first` rank has that number.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cores: Sequence[StagedRank],
        group: StagedGroup,
        on_finished: Listener,
        looks: Ticks | None,
        first: int,
    ) -> None:
        super().__init__(cores, group, on_finished, looks)
        self._env = env
        self._called, self._back = at_replica(PASS, first), at_replica(ANSWER, first)
        self._idle = env.event()
        env.process(self._serve())

    def take(self, rank: Rank, answers: Sequence[Request]) -> None:
        self._show()
        self._group.take(rank.number, answers, self._env.now)
        if not self._idle.triggered:
            self._idle.succeed()

    def _show(self) -> None:
        looks = self._looks
        if looks is not None and looks.passed(self._env.now):
            self._seen = self._group.metrics(looks.last_s)
        self._group.show(self._env.now)

    def _serve(self) -> Process:
        env, group = self._env, self._group
        while True:
            if group.is_paused:
                self._idle = env.event()
                yield self._idle
            self._show()
            group.leap(min(env.peek(), group.next_scrape_s, self._looks.next_s if self._looks else math.inf))
            loop = group.following
            if loop.at_s > env.now or env.peek() <= env.now:  # else nothing can come before
                yield At(env, loop.at_s, self._called if loop.next == CALL else self._back)
            self._show()
            finished = group.act(loop)
            if finished:
                self._tell([(loop.number, finished)])
