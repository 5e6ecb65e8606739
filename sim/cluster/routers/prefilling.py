"""Tokens that requests in flight are taken to cost their replicas, until they have ended or, of prompts, until their first tokens come back."""

from heapq import heappop, heappush
from itertools import count

import numpy as np

from sim.engine.records import Floats
from sim.engine.request import Request


class TokensInFlight:
    """`num_tokens` of each replica; those of a request count until it is forgotten."""

    def __init__(self, num_replicas: int) -> None:
        self.num_tokens: Floats = np.zeros(num_replicas)
        self._requests: dict[Request, tuple[int, float]] = {}

    def refresh(self, now_s: float) -> None:
        """A request comes now; nothing is forgotten because of the time."""

    def forget(self, request: Request) -> None:
        """A request has no tokens left that count; it may have been removed before."""
        replica, num_tokens = self._requests.pop(request, (0, 0.0))
        self.num_tokens[replica] -= num_tokens

    def add(self, request: Request, replica: int, num_tokens: float) -> None:
        """A request has been sent to a replica, where so many tokens of it count."""
        self._requests[request] = (replica, num_tokens)
        self.num_tokens[replica] += num_tokens


class Prefilling(TokensInFlight):
    """Forgets requests as their first tokens come back: engines note in `_timed` whose times they know, and `_coming` is a heap of these."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self._timed: list[Request] = []
        self._coming: list[tuple[float, int, Request]] = []
        self._serial = count()

    def refresh(self, now_s: float) -> None:
        """Forget those whose first token came before this time."""
        coming = self._coming
        for request in self._timed:
            heappush(coming, (request.first_token_s, next(self._serial), request))
        self._timed.clear()
        while coming and coming[0][0] < now_s:
            self.forget(heappop(coming)[2])

    def add(self, request: Request, replica: int, num_tokens: float) -> None:
        """A request has been sent to a replica, which has `num_tokens` of its prompt to compute."""
        super().add(request, replica, num_tokens)
        request.noted_in = self._timed
