"""KV that replicas share while each serves requests whole: what a means of sharing is to a fleet."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import simpy

from sim.cluster.replica import LiveReplica, Replica
from sim.cluster.shared_records import SharedRecords
from sim.engine.request import Request
from sim.engine.walking.modes import Modes
from sim.memory.transfers import ReplicaKV


class Shared(Protocol):
    """In one run; `replicas` stand there by number, each as long as it is there."""

    replicas: dict[int, LiveReplica]

    def modes_of(self, modes: Modes, number: int) -> Modes:
        """What the engine of that replica does besides."""
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
    """A means of sharing, with its options and costs."""

    def over(self, env: simpy.Environment, kvs: Sequence[ReplicaKV], block_size: int, num_requests: int) -> Shared:
        """In a run of replicas with such KV caches, by number."""
        ...
