"""Naive fleets that change and whose replicas share KV, by a store or by pulls from each other."""

from collections.abc import Callable
from typing import Any

import simpy

from tests.reference import kv_pulls, kv_store
from tests.reference.connector import Connector
from tests.reference.managed import Job, ManagedFleet, Spot
from tests.reference.modes import Offload
from tests.reference.multi_connector import in_one, parts_of
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica
from tests.reference.request import Request

MOST_SPOTS = 16

Make = Callable[[simpy.Environment, int], Any]
"""Makes the cluster of so many replicas."""


class ManagedSharing(ManagedFleet):
    """`cluster` is what they share, `offload` each replica's CPU tier, if it has one."""

    offload: Offload | None = None

    def __init__(self, env: simpy.Environment, *given: Any, make: Make, **options: Any) -> None:
        self.cluster = make(env, MOST_SPOTS)
        super().__init__(env, *given, **options)

    def replica(self, spot: Spot, recorder: Recorder) -> Replica:
        replica = super().replica(spot, recorder)
        replica.scheduler.connector = self.connector(spot, replica)
        return replica

    def connector(self, spot: Spot, replica: Replica) -> Connector:
        raise NotImplementedError


class ManagedStore(ManagedSharing):
    """What is in the store outlives who stored it."""

    def connector(self, spot: Spot, replica: Replica) -> Connector:
        kv = replica.scheduler.kv
        return in_one(None, self.offload, kv, self.config, kv_store.Stored(self.cluster, spot.number, kv, self.config))

    def stop(self, spot: Spot) -> None:
        super().stop(spot)
        assert spot.replica
        for part in parts_of(spot.replica.scheduler.connector):
            if isinstance(part, kv_store.Stored):
                part.lose()

    def lose_jobs(self, spot: Spot, jobs: list[Job]) -> None:
        self.cluster.lose(spot.number)
        super().lose_jobs(spot, jobs)


class ManagedPulls(ManagedSharing):
    def connector(self, spot: Spot, replica: Replica) -> Connector:  # noqa: ARG002 - that of any fleet that shares
        kv = replica.scheduler.kv
        return in_one(kv_pulls.Pulled(self.cluster, kv, self.config), self.offload, kv, self.config)

    def hand(self, job: Job) -> None:
        there = {spot.number: spot.replica for spot in self.seeming() if spot.replica}
        loads = {spot.number: self.load(spot) for spot in self.seeming()}
        lost = [spot.number for spot in self.seeming() if spot.state != "ready"]
        assert job.spot
        self.cluster.name_source(job.attempt, job.spot.number, there, loads, lost)
        super().hand(job)

    def lose_jobs(self, spot: Spot, jobs: list[Job]) -> None:
        self.cluster.lose(spot.number)
        super().lose_jobs(spot, jobs)

    def give_back(self, spot: Spot) -> None:
        was_there = spot.state != "empty"
        super().give_back(spot)
        if was_there and spot.state == "empty":
            self.cluster.lose_source(spot.number)

    def finished(self, spot: Spot, request: Request) -> None:
        if not (request.script.recv_fails and request.num_output_tokens < request.max_tokens):
            super().finished(spot, request)
            return
        self.lose_kv(spot, request)
