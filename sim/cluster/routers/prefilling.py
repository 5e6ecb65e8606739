"""Prompt tokens that replicas have yet to compute, as a router estimates them from the first tokens that it sees."""

import numpy as np

from sim.engine.records import Floats
from sim.engine.request import Request


class Prefilling:
    """`num_tokens` of each replica; those of a request count until it is forgotten, by `refresh` once its first token has come back."""

    def __init__(self, num_replicas: int) -> None:
        self.num_tokens: Floats = np.zeros(num_replicas)
        self._requests: dict[Request, tuple[int, float]] = {}

    def refresh(self, now_s: float) -> None:
        """Forget those whose first token came before this time."""
        for request in [request for request in self._requests if request.first_token_s < now_s]:
            self.forget(request)

    def forget(self, request: Request) -> None:
        """A request has no prompt tokens left to compute; it may have been removed before."""
        replica, num_tokens = self._requests.pop(request, (0, 0.0))
        self.num_tokens[replica] -= num_tokens

    def add(self, request: Request, replica: int, num_tokens: float) -> None:
        """A request has been sent to a replica, which has `num_tokens` of its prompt to compute."""
        self._requests[request] = (replica, num_tokens)
        self.num_tokens[replica] += num_tokens
