"""KV that replicas, all alike, share while each serves requests whole: what a means of sharing is to a fleet."""

from collections.abc import Sequence
from typing import Protocol

import simpy

from sim.cluster.gateway import Gateway
from sim.cluster.replica import LiveReplica
from sim.cluster.routers.router import Router
from sim.cluster.shared_records import SharedRecords
from sim.engine.request_source import RequestSource
from sim.engine.walking.modes import Modes
from sim.memory.transfers import ReplicaKV


class Shared(Protocol):
    """In one run."""

    def gateway(self, env: simpy.Environment, router: Router, source: RequestSource) -> Gateway:
        """Behind which the replicas serve."""
        ...

    def modes_of(self, modes: Modes, number: int) -> Modes:
        """What the engine of that replica does besides."""
        ...

    def connect(self, replicas: Sequence[LiveReplica]) -> None:
        """These are all there are, by number."""
        ...

    def records(self) -> SharedRecords:
        """What came of it."""
        ...


class Sharing(Protocol):
    """A means of sharing, with its options and costs."""

    def over(
        self, env: simpy.Environment, kv: ReplicaKV, block_size: int, num_replicas: int, num_requests: int
    ) -> Shared:
        """In a run of so many replicas with such a KV cache."""
        ...
