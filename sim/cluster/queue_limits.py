"""vLLM's own limits of what a server takes in: max_num_queued_reqs and max_num_queued_tokens, beyond which it answers 503.

Mirrors AsyncLLM.check_admission (0.32): who is let in is decided as a request arrives, after all outputs of that instant. One for several
answers takes as many places, and is let in or refused as a whole.
Deliberate difference: a server counts all that it has, where one of several API servers has looked at its own tokens alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import simpy

from sim.cluster.clock import ASK, call_at
from sim.cluster.course import Listener
from sim.cluster.replica import LiveReplica
from sim.engine.driven import Core
from sim.engine.request import Request
from sim.specs.engine import ResolvedEngine

LetIn = Callable[[Request, Sequence[Request]], None]
"""Told of a request that is let in, and of those for its further answers."""
Refuse = Callable[[Request, str], None]
"""Told of a request that is turned away, and why."""


class QueueLimits(NamedTuple):
    """At most so many requests under way, and no more once so many tokens of prompts wait; None is no limit."""

    most_requests: int | None
    most_tokens: int | None

    @classmethod
    def of(cls, engine: ResolvedEngine) -> Self | None:
        """Those of a server, if it has any."""
        found = cls(engine.max_num_queued_reqs, engine.max_num_queued_tokens)
        return None if found == (None, None) else found


class Door:
    """Stands before a server and counts what that has not answered; prompts count until their first token is out.

    Requests that arrive at this instant are `undecided`, each with those for its further answers, until all that comes back at it has
    come back.
    """

    def __init__(self, env: simpy.Environment, limits: QueueLimits, let_in: LetIn, refuse: Refuse) -> None:
        self._env = env
        self._limits = limits
        self._let_in = let_in
        self._refuse = refuse
        self.undecided: dict[Request, Sequence[Request]] = {}
        self._unanswered: dict[Request, None] = {}

    def submit(self, request: Request, others: Sequence[Request]) -> None:
        """A request arrives now."""
        self.undecided[request] = others
        call_at(self._env, self._env.now, ASK, lambda: self._decide(request))

    def _decide(self, request: Request) -> None:
        if request not in self.undecided:
            return  # nobody waits for it any more
        others = self.undecided.pop(request)
        refusal = self._refusal(1 + len(others))
        if refusal:
            self._refuse(request, refusal)
        else:
            self._unanswered |= dict.fromkeys((request, *others))
            self._let_in(request, others)

    def _refusal(self, num_answers: int) -> str | None:
        most_requests, most_tokens = self._limits
        if most_requests is not None and (there := len(self._unanswered)) + num_answers > most_requests:
            asked = f" and {num_answers} answers asked for, of {most_requests}" if num_answers > 1 else ""
            return f"503: {there} requests were under way{asked} (max_num_queued_reqs)"
        if most_tokens is not None and self._num_queued_tokens >= most_tokens:
            return f"503: {self._num_queued_tokens} prompt tokens waited (max_num_queued_tokens {most_tokens})"
        return None

    @property
    def _num_queued_tokens(self) -> int:
        now_s = self._env.now
        return sum(request.num_prompt_tokens for request in self._unanswered if not request.first_token_s <= now_s)

    @property
    def num_undecided(self) -> int:
        """With those for further answers."""
        return sum(1 + len(others) for others in self.undecided.values())

    def answered(self, requests: Sequence[Request]) -> None:
        """The server has ended them."""
        for request in requests:
            self._unanswered.pop(request, None)

    def forget(self, *answers: Request) -> bool:
        """Nobody waits for these any more; whether they were still undecided."""
        self.answered(answers)
        return self.undecided.pop(answers[0], None) is not None


class LimitedReplica(LiveReplica):
    """A replica that is a server with limits."""

    def __init__(
        self,
        env: simpy.Environment,
        core: Core,
        number: int,
        pool: int,
        on_finished: Listener,
        scrape_interval_s: float | None,
        *,
        limits: QueueLimits,
        refuse: Refuse,
    ) -> None:
        super().__init__(env, core, number, pool, self._answered, scrape_interval_s)
        self._on_answered = on_finished
        self._door = Door(env, limits, self._let_in, refuse)

    def submit(self, *answers: Request) -> None:
        self._show()
        first, *others = answers
        self._door.submit(first, others)

    def _let_in(self, request: Request, others: Sequence[Request]) -> None:
        super().submit(request, *others)

    def _answered(self, finished: Sequence[Request]) -> None:
        self._door.answered(finished)
        self._on_answered(finished)

    def abort(self, *answers: Request, reason: str) -> None:
        if self._door.forget(*answers):
            for request in answers:
                self._core.refuse(request, reason)
        else:
            super().abort(*answers, reason=reason)

    def halt(self) -> dict[Request, int]:
        undecided = dict.fromkeys(self._door.undecided, 0)
        self._door.undecided.clear()
        return super().halt() | undecided

    @property
    def _num_undecided(self) -> int:
        return self._door.num_undecided


def live_replica(
    env: simpy.Environment,
    core: Core,
    number: int,
    pool: int,
    on_finished: Listener,
    scrape_interval_s: float | None,
    *,
    limits: QueueLimits | None,
    refuse: Refuse,
) -> LiveReplica:
    """With limits, if there are any."""
    if limits is None:
        return LiveReplica(env, core, number, pool, on_finished, scrape_interval_s)
    return LimitedReplica(env, core, number, pool, on_finished, scrape_interval_s, limits=limits, refuse=refuse)
