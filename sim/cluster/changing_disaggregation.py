"""A run of a fleet that changes and in which some replicas prefill for others."""

from collections.abc import Mapping
from functools import partial

from sim.cluster.changing import ChangingFleet
from sim.cluster.engines import StepLog
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.lock_step import RankCore
from sim.cluster.managed_disaggregation import ManagedDisaggregatedGateway
from sim.cluster.managed_server import ManagedServer
from sim.cluster.places import Place
from sim.cluster.prefill_desk import open_desk
from sim.cluster.replica import LiveReplica
from sim.cluster.servers import Front
from sim.cluster.shared_records import SharedRecords
from sim.cluster.watch import Watch
from sim.engine.walking.modes import POLLING_S


class ChangingDisaggregatedFleet(ChangingFleet):
    """As the fleet that changes, with engines that hand KV over; those poll every `idle_sleep_s` while they wait."""

    idle_sleep_s = POLLING_S

    def _gateway(self, watches: Mapping[int, Watch]) -> ManagedDisaggregatedGateway:
        prefills = partial(self._router_for, is_prefill=True)
        self._exchange, self._desk = open_desk(
            self._env, self._plan, self.pool_of, prefills, self._source, self.idle_sleep_s
        )
        self._answering = self._managed(ManagedDisaggregatedGateway, watches, desk=self._desk, exchange=self._exchange)
        return self._answering

    def _front(self, place: Place) -> Front:
        if self._desk.is_prefill(place.pool):
            answering = self._answering
            return Front(self._desk.router.scrape_interval_s, answering.prefilled, answering.refused)
        return super()._front(place)

    def _replica(self, place: Place) -> LiveReplica:
        replica = super()._replica(place)
        self._exchange.connect(replica.number_in_fleet, replica)
        return replica

    def _server(self, place: Place) -> ManagedServer:
        server = super()._server(place)
        for number, engine in zip(place.replicas, server.live_engines, strict=True):
            self._exchange.connect(number, engine)
        return server

    def _core(self, place: Place, number: int, log: StepLog | None) -> RankCore:
        num_keys = self._source.num_keys(place.pool)
        pool = self._pool(place)
        return self._exchange.core(pool, self._table, number, start_s=self._env.now, num_keys=num_keys, step_log=log)

    def handovers(self) -> HandoverRecords:
        """What was handed over; to be asked for after `records`."""
        return self._exchange.records()

    def shared(self) -> SharedRecords | None:
        return self._exchange.shared()
