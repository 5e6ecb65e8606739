"""The gateway of a fleet that changes and whose engines get KV from elsewhere, which may be lost on the way."""

from collections.abc import Sequence

from sim.cluster.managed_gateway import ManagedGateway
from sim.engine.request import Request


class TransferringGateway(ManagedGateway):
    """An attempt whose KV could not be had ends, and the gateway's recovery says what becomes of it."""

    def _failed_at(self, request: Request) -> int | None:
        """The replica at which it has ended so, if it has; to be asked for once."""
        raise NotImplementedError

    def answered(self, number: int, finished: Sequence[Request]) -> None:
        failed = {request: replica for request in finished if (replica := self._failed_at(request)) is not None}
        super().answered(number, [request for request in finished if request not in failed])
        for request, replica in failed.items():
            errand = self._errands.get(request.index)
            if errand is not None:
                self._leave(errand)
                errand.replica = replica
                self._lose(errand, "its KV was lost")
        if failed:
            self._places.give_back_if_drained(self._places.at(number))
            self.dispatch_soon()
