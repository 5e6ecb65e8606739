"""KV that replicas share, also beside what they hand over: what a means of sharing is to a fleet."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sim.cluster.engine_role import Engine, Role
from sim.cluster.network import Network, NetworkCosts
from sim.cluster.replica import Replica
from sim.cluster.shared_records import SharedRecords
from sim.engine.request import Request
from sim.engine.walking.modes import Modes
from sim.memory.transfers import ReplicaKV


class Shared(Protocol):
    """In one run; `engines` stand there by number, each as long as it is there."""

    engines: dict[int, Engine]

    def modes_of(self, modes: Modes, number: int, role: Role) -> Modes:
        """What the engine of that number, in a pool of that role, does besides."""
        ...

    def sent(self, request: Request, chosen: Replica, all_there: Iterable[Replica]) -> None:
        """A request is about to be sent to the one of them that was chosen for it."""
        ...

    def failed_at(self, request: Request) -> int | None:
        """The replica at which a request has ended because its KV could not be had, if it has; to be asked for once."""
        ...

    def lost(self, number: int) -> None:
        """That replica is lost, and what is on its way to it or from it breaks off."""
        ...

    def gone(self, number: int) -> None:
        """That replica has answered all its requests and has been given back."""
        ...

    def records(self) -> SharedRecords:
        """What came of it."""
        ...


class Sharing(Protocol):
    """A means of sharing, with its options."""

    @property
    def costs(self) -> NetworkCosts:
        """Of what goes between its engines, and what else there is."""
        ...

    def over(self, network: Network, kvs: Sequence[ReplicaKV], block_size: int, num_requests: int) -> Shared:
        """In a run of engines with such KV caches, by number, which the network has already."""
        ...
