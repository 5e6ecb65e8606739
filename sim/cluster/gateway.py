"""The gateway routes each request to a replica and triggers the sender's event when the request has ended."""

from collections.abc import Sequence

import simpy

from sim.cluster.clock import Answer
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Router
from sim.engine.request import Request


class Gateway:
    """Connects senders with replicas."""

    def __init__(self, env: simpy.Environment, router: Router) -> None:
        self._env = env
        self.router = router
        self._answers: dict[Request, Answer] = {}
        self.replicas: Sequence[Replica] = ()

    def submit(self, request: Request) -> None:
        """Hand a request that arrives now to a replica."""
        chosen = self.router.choose(request, self.replicas)
        self.replicas[chosen].submit(request)

    def ask(self, request: Request) -> Answer:
        """Submit a request, which arrives now; the event happens when it has ended."""
        request.arrival_s = self._env.now
        answer = self._answers[request] = Answer(self._env)
        self.submit(request)
        return answer

    def answered(self, replica: int, finished: Sequence[Request]) -> None:
        """Requests have ended at a replica: tell the router and trigger the senders' events."""
        for request in finished:
            if self.router.listens:
                self.router.answered(request, replica)
            answer = self._answers.pop(request, None)
            if answer is not None:
                answer.give()
