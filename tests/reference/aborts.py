"""Aborts as vLLM hears of them: as a call begins, and before a batch's tokens are taken in."""

from typing import NamedTuple

import simpy

from tests.reference.request import Request, RequestStatus
from tests.reference.scheduler import Scheduler


class Abort(NamedTuple):
    """A request that nobody waits for any more, why, and since when."""

    request: Request
    reason: str
    at_s: float


class TakesAborts:
    """An engine, which is woken by what comes; requests lie in its `inbox` until its next call."""

    scheduler: Scheduler

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self.inbox: list[Request] = []
        self.aborts: list[Abort] = []

    def wake(self) -> None:
        raise NotImplementedError

    def abort(self, request: Request, reason: str) -> None:
        """Whoever asked has gone. A batch that comes back at this very instant is taken in first."""
        if request in self.inbox:
            self.inbox.remove(request)
            request.failed = reason
        else:
            self.aborts.append(Abort(request, reason, self._env.now))
            self.wake()

    def drain_aborts(self, before_s: float) -> None:
        """Those that came before."""
        due = [abort for abort in self.aborts if abort.at_s < before_s]
        self.aborts = [abort for abort in self.aborts if abort not in due]
        for request, reason, _ in due:
            if request.status is not RequestStatus.FINISHED:
                self.scheduler.abort(request)
                request.failed = reason
