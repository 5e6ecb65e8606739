"""vLLM's own limits of what it takes in: max_num_queued_reqs and max_num_queued_tokens, beyond which it answers 503.

Mirrors AsyncLLM.check_admission (0.32): who is let in is decided as a request arrives, after all outputs of that instant.
"""

from collections.abc import Callable, Sequence

import simpy

from sim.cluster.clock import ASK, At
from sim.engine.request import Request

Submit = Callable[[Request], None]
Refuse = Callable[[Request, str], None]


class QueueLimits:
    """Stands before a replica and counts what that has not answered; prompts count until their first token is out."""

    def __init__(
        self, env: simpy.Environment, submit: Submit, refuse: Refuse, most_requests: int | None, most_tokens: int | None
    ) -> None:
        self._env = env
        self._submit = submit
        self._refuse = refuse
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._unanswered: dict[Request, None] = {}

    def submit(self, request: Request) -> None:
        """A request arrives now."""
        At(self._env, self._env.now, ASK).callbacks.append(lambda _: self._let_in(request))

    def _let_in(self, request: Request) -> None:
        refusal = self._refusal()
        if refusal:
            self._refuse(request, refusal)
        else:
            self._unanswered[request] = None
            self._submit(request)

    def _refusal(self) -> str | None:
        if self._most_requests is not None and len(self._unanswered) + 1 > self._most_requests:
            return f"503: {self._most_requests} requests are under way, max_num_queued_reqs"
        if self._most_tokens is not None and self._num_queued_tokens >= self._most_tokens:
            return f"503: {self._num_queued_tokens} prompt tokens wait, max_num_queued_tokens {self._most_tokens}"
        return None

    @property
    def _num_queued_tokens(self) -> int:
        now_s = self._env.now
        return sum(request.num_prompt_tokens for request in self._unanswered if not request.first_token_s <= now_s)

    def answered(self, requests: Sequence[Request]) -> None:
        """The replica has ended them."""
        for request in requests:
            del self._unanswered[request]
