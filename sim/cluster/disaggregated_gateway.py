"""A gateway that sends requests over two replicas, prefill at one, decode at another, in a fleet that stays as it is."""

from collections.abc import Sequence

import simpy

from sim.cluster.gateway import Gateway
from sim.cluster.handovers import Handovers
from sim.cluster.prefill_desk import PrefillDesk
from sim.cluster.replica import LiveReplica, Replica
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
        super().__init__(env, router, unable=source.unable, fit=source.fit if source.other_keys else None)
        self.desk = desk
        self._table = table
        self._handovers = handovers
        self._by_number: Sequence[LiveReplica] = ()
        self._prefill_replicas: Sequence[LiveReplica] = ()

    def connect(self, replicas: Sequence[LiveReplica]) -> None:
        """These are all there are, by number."""
        self._by_number = replicas
        self.replicas = [replica for replica in replicas if not self.desk.is_prefill(replica.pool)]
        self._prefill_replicas = [replica for replica in replicas if self.desk.is_prefill(replica.pool)]

    def send(self, chosen: Replica, *answers: Request) -> None:
        """A request that arrives now and will be answered by that replica."""
        (request,) = answers
        handover = self.desk.begin(request, self._by_number[chosen.number], self._prefill_replicas)
        if handover is None:
            chosen.submit(request)
        else:
            handover.sender.submit(handover.prefill)

    def prefilled(self, replica: int, prefills: Sequence[Request]) -> None:
        """Prompts have been computed at a replica."""
        self.desk.prefilled(replica, prefills)

    def answered(self, replica: int, finished: Sequence[Request]) -> None:
        for request in finished:
            if self._handovers.has_failed(request):
                self._table.fail(request, 0, LOST_KV, replica)
        super().answered(replica, finished)
