"""Servers of several engines that come and go: of each answer it is known which engine has it, so that it can be taken back.

A server is lost whole; the next one in its place begins with empty caches, and balancers that know nothing. Deliberate difference: a balancer hears at
once of an answer that is aborted, where vLLM's is told with what the engine returns next.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

from sim.cluster.gateway import Gateway
from sim.cluster.lock_step import Rank
from sim.cluster.replica import LiveReplica, Replica
from sim.cluster.servers import Address, Engines, Server, live_engines
from sim.engine.metrics import Metrics
from sim.engine.request import Request
from sim.steptime.protocol import StepTimeModel


class EndingEngines(Engines, Protocol):
    """Live engines of a server, from which answers are taken back and which may be lost."""

    @property
    def engines_now(self) -> Sequence[Metrics]: ...
    def abort(self, engine: int, answer: Request, reason: str) -> None: ...
    def refuse(self, answer: Request, reason: str) -> None: ...
    def use(self, step_time: StepTimeModel) -> None: ...
    def halt(self) -> dict[Request, int]: ...


class NotingGateway(Gateway):
    """`engine_of` has the engine of each answer that has not come, by its number in the server."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.engine_of: dict[Request, int] = {}

    def send(self, chosen: Replica, *answers: Request) -> None:
        self.engine_of |= dict.fromkeys(answers, chosen.number)
        super().send(chosen, *answers)

    def answered(self, replica: int, finished: Sequence[Request]) -> None:
        for answer in finished:
            self.engine_of.pop(answer, None)
        super().answered(replica, finished)

    def forget(self, *answers: Request) -> bool:
        """Nobody waits for these any more; whether they were still to be let in."""
        return self._door is not None and self._door.forget(*answers)

    def lose_undecided(self) -> None:
        """Requests that were still to be let in are lost."""
        if self._door:
            self._door.undecided.clear()


class ManagedAddress(Address):
    """One of a server that may be lost, at which requests may be aborted."""

    @property
    def _noting(self) -> NotingGateway:
        return cast("NotingGateway", self._gateway)

    def replica_of(self, answer: Request) -> int:
        """The number in the fleet of the engine that has it; of the first one if none does."""
        return self._replicas[self._noting.engine_of.get(answer, self.behind.start)]

    def abort(self, *answers: Request, reason: str) -> None:
        """End answers of a request that was submitted which have not come, each where it is."""
        gateway, engines = self._noting, cast("EndingEngines", self._engines)
        if gateway.forget(*answers):
            for answer in answers:
                engines.refuse(answer, reason)
            return
        for answer in answers:
            engine = gateway.engine_of.pop(answer)
            gateway.router.answered(answer, engine - self.behind.start)
            engines.abort(engine, answer, reason)

    def lose_undecided(self) -> None:
        """Requests that were still to be let in are lost."""
        self._noting.lose_undecided()


class ManagedServer:
    """What is in a place: a server as a tenant (sim/cluster/places.py)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engines = cast("EndingEngines", server.engines)
        self.at_addresses = cast("Sequence[ManagedAddress]", server.addresses)

    @property
    def live_engines(self) -> Sequence[LiveReplica | Rank]:
        """In order of their numbers."""
        return live_engines(self._server)

    @property
    def engines_now(self) -> Sequence[Metrics]:
        return self._engines.engines_now

    def halt(self) -> dict[Request, int]:
        for address in self.at_addresses:
            address.lose_undecided()
        return self._engines.halt()

    def use(self, step_time: StepTimeModel) -> None:
        self._engines.use(step_time)
