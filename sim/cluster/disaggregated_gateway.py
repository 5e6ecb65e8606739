"""A gateway that sends requests over two addresses, prefill at one, decode at another, in a fleet that stays as it is."""

from collections.abc import Sequence

import simpy

from sim.cluster.gateway import Gateway
from sim.cluster.handovers import Handovers
from sim.cluster.prefill_desk import PrefillDesk
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Router
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable

LOST_KV = "its KV was given up by the replica that prefilled it"


class DisaggregatedGateway(Gateway):
    """`replicas` answer requests; those of role decode leave prompts to others, where the decider says so."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        source: RequestSource,
        table: RequestTable,
        desk: PrefillDesk,
        handovers: Handovers,
    ) -> None:
        super().__init__(
            env, router, unable=source.unable, fit=source.fit if source.other_keys else None, reject=table.reject
        )
        self.desk = desk
        self._table = table
        self._handovers = handovers
        self._prefill_replicas: Sequence[Replica] = ()

    def connect(self, addresses: Sequence[Replica]) -> None:
        """These are all there are, by number."""
        self.replicas = [address for address in addresses if not self.desk.is_prefill(address.pool)]
        self._prefill_replicas = [address for address in addresses if self.desk.is_prefill(address.pool)]

    def send(self, chosen: Replica, *answers: Request) -> None:
        """A request that arrives now and will be answered there."""
        (request,) = answers
        handover = self.desk.begin(request, chosen, self._prefill_replicas)
        if handover is None:
            chosen.submit(request)
        else:
            handover.sender.submit(handover.prefill)

    def prefilled(self, replica: int, prefills: Sequence[Request]) -> None:
        """Prompts have been computed at an address."""
        self.desk.prefilled(replica, prefills)

    def answered(self, replica: int, finished: Sequence[Request]) -> None:
        for request in finished:
            failed_at = self._handovers.failed_at(request)
            if failed_at is not None:
                self._table.fail(request, 0, LOST_KV, failed_at)
        super().answered(replica, finished)
