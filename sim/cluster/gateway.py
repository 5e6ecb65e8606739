"""The gateway routes each request to a replica and triggers the sender's event when the request has ended, or was refused."""

from collections.abc import Callable, Mapping, Sequence

import simpy

from sim.cluster.clock import Answer
from sim.cluster.parallel_sampling import ParallelSampling
from sim.cluster.queue_limits import Door, QueueLimits, Refuse
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Router
from sim.engine.request import Request

EVERY_POOL: Mapping[int, frozenset[int]] = {}


class Gateway:
    """Connects senders with `replicas`, which stand in order of their numbers.

    Pools may be `unable` to serve some rows of the trace; `fit` prepares a request for the pool that it is sent to. `reject`
    is told of a request that vLLM turns away, and why. `is_blind`: the router asks the replicas for nothing but their numbers.
    `limits` are those of all replicas together.
    """

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        *,
        unable: Mapping[int, frozenset[int]] = EVERY_POOL,
        fit: Callable[[Request, int], None] | None = None,
        reject: Refuse | None = None,
        is_blind: bool = False,
        limits: QueueLimits | None = None,
        sampling: ParallelSampling | None = None,
    ) -> None:
        self._env = env
        self.router = router
        self.is_blind = is_blind
        self._unable = unable
        self._fit = fit
        self._reject = reject
        self._sampling = sampling
        self._door = None if limits is None else Door(env, limits, self._route, self._turn_away)
        self._answers: dict[Request, Answer] = {}
        self.replicas: Sequence[Replica] = ()

    @property
    def has_limits(self) -> bool:
        """Whether it may turn requests away."""
        return self._door is not None

    @property
    def only_routes(self) -> bool:
        """Whether any replica can serve any request, each as it is and for one answer."""
        return not (self._door or self._unable or self._fit or self._sampling)

    def submit(self, request: Request) -> None:
        """Hand a request that arrives now to a replica."""
        self.take(request, self._others(request))

    def take(self, request: Request, others: Sequence[Request]) -> None:
        """The same, with those for its further answers."""
        if self._door:
            self._door.submit(request, others)
        else:
            self._route(request, others)

    @property
    def num_undecided(self) -> int:
        """Requests that arrive now and may yet be turned away."""
        return self._door.num_undecided if self._door else 0

    def _others(self, request: Request) -> Sequence[Request]:
        """Those for its further answers."""
        if not self._sampling:
            return ()
        return self._sampling.others(request, is_awaited=self.router.listens or request in self._answers)

    def _route(self, request: Request, others: Sequence[Request]) -> None:
        if self._sampling and self._sampling.one_by_one:
            for answer in (request, *others):
                self._hand_over(self._choose(answer), answer)
        else:
            self._hand_over(self._choose(request), request, *others)

    def _choose(self, request: Request) -> Replica:
        return self.router.choose(request, self._candidates(request) if self._unable else self.replicas)

    def _hand_over(self, chosen: Replica, *answers: Request) -> None:
        if self._fit:
            for request in answers:
                self._fit(request, chosen.pool)
        self.send(chosen, *answers)

    def send(self, chosen: Replica, *answers: Request) -> None:
        """Send a request to the replica that was chosen for it."""
        chosen.submit(*answers)

    def _candidates(self, request: Request) -> Sequence[Replica]:
        """The replicas that can serve it."""
        unable = self._unable.get(request.index)
        return [replica for replica in self.replicas if replica.pool not in unable] if unable else self.replicas

    def ask(self, request: Request) -> Answer:
        """Submit a request, which arrives now; the event happens when it has ended."""
        request.arrival_s = self._env.now
        answer = self._answers[request] = Answer(self._env)
        self.submit(request)
        return answer

    def answered(self, replica: int, finished: Sequence[Request]) -> None:
        """Requests have ended at a replica: tell the router and trigger the senders' events."""
        if self._door:
            self._door.answered(finished)
        whole = list(self._sampling.whole(finished)) if self._sampling else finished
        if self.router.listens:
            for request in finished if self._sampling and self._sampling.one_by_one else whole:
                self.router.answered(request, replica)
        if self._answers:
            for request in whole:
                self._answer(request)

    def refused(self, replica: int, request: Request, reason: str) -> None:
        """A replica turns a request away that it was sent."""
        if self.router.listens:
            self.router.answered(request, replica)
        self._turn_away(request, reason)

    def _turn_away(self, request: Request, reason: str) -> None:
        assert self._reject is not None, "somebody keeps a record of what limits turn away"
        self._reject(request, reason)
        if self._sampling:
            self._sampling.forget(request)
        self._answer(request)

    def _answer(self, request: Request) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None:
            answer.give()
