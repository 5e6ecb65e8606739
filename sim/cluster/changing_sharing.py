"""A run of a fleet that changes and whose replicas share KV: what they share outlives them."""

from collections.abc import Iterable, Mapping
from typing import Any

from sim.cluster.changing import ChangingFleet
from sim.cluster.engines import StepLog
from sim.cluster.errand import Errand
from sim.cluster.lock_step import RankCore
from sim.cluster.managed_gateway import NOTHING_RETURNED
from sim.cluster.managed_transfers import TransferringGateway
from sim.cluster.places import Address, Place
from sim.cluster.replica import LiveReplica
from sim.cluster.shared_records import SharedRecords
from sim.cluster.sharing import Shared
from sim.cluster.sharing_fleet import begun_sharing, sharing_core
from sim.cluster.watch import Watch
from sim.engine.request import Request
from sim.engine.walking.modes import POLLING_S


class ManagedSharingGateway(TransferringGateway):
    """Tells what is shared of each request that it sends, and of each replica that is no longer there."""

    def __init__(self, *given: Any, shared: Shared, **options: Any) -> None:
        super().__init__(*given, **options)
        self._shared = shared

    def _failed_at(self, request: Request) -> int | None:
        return self._shared.failed_at(request)

    def _submit(self, errand: Errand, address: Address) -> None:
        self._shared.sent(errand.attempt, address, self._places.candidates())
        super()._submit(errand, address)

    def lost(self, place: Place, lost: Iterable[Request], returned: Mapping[Request, int] = NOTHING_RETURNED) -> None:
        for number in place.replicas:
            self._shared.lost(number)
        super().lost(place, lost, returned)

    def gone(self, place: Place) -> None:
        super().gone(place)
        for number in place.replicas:
            self._shared.gone(number)


class ChangingSharingFleet(ChangingFleet):
    """As the fleet that changes, with engines that share KV; those poll every `idle_sleep_s` while they wait for some."""

    idle_sleep_s = POLLING_S

    def _gateway(self, watches: Mapping[int, Watch]) -> ManagedSharingGateway:
        self._shared = begun_sharing(self._env, self._plan, self.pool_of, self._source)
        return self._managed(ManagedSharingGateway, watches, shared=self._shared)

    def _replica(self, place: Place) -> LiveReplica:
        replica = super()._replica(place)
        self._shared.engines[replica.number_in_fleet] = replica
        return replica

    def _core(self, place: Place, number: int, log: StepLog | None) -> RankCore:
        return sharing_core(
            self._pool(place),
            self._shared,
            self._table,
            number,
            start_s=self._env.now,
            num_keys=self._source.num_keys(place.pool),
            idle_sleep_s=self.idle_sleep_s,
            step_log=log,
        )

    def shared(self) -> SharedRecords:
        return self._shared.records()
