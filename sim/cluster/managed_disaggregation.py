"""The gateway of a fleet that changes and in which some replicas prefill for others.

A request that is prefilled elsewhere is at its decode replica, as far as losses and timeouts are concerned, from when it is sent; besides, its
prompt is at the prefill replica. Whichever is lost, the gateway's recovery says what becomes of it; so it does of a request whose KV could not be fetched.
As with llm-d's sidecar, which stands beside the decode replica, a prefill ends unfinished where that is lost. Deliberate difference: of what the attempts
before left in a prefix cache, a request finds only what it shares with others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.cluster.errand import Errand
from sim.cluster.exchange import Exchange
from sim.cluster.handovers import Handover
from sim.cluster.managed_gateway import NOTHING_RETURNED
from sim.cluster.managed_transfers import TransferringGateway
from sim.cluster.places import Address, Place, State
from sim.cluster.prefill_desk import PrefillDesk
from sim.cluster.routers.router import Router
from sim.engine.request import Request

GIVEN_UP = "nobody waits for it any more"


class ManagedDisaggregatedGateway(TransferringGateway):
    """Places of prefill replicas have prompts that are being computed `in_flight`, and handovers of which they `hold` the KV."""

    def __init__(self, *given: Any, desk: PrefillDesk, exchange: Exchange, **options: Any) -> None:
        super().__init__(*given, **options)
        self._desk = desk
        self._exchange = exchange
        self._handovers = exchange.handovers
        self._handovers.on_released = self._released

    # -- to replicas -----------------------------------------------------------------------------------------------

    def _candidates(self, request: Request) -> list[Address]:
        return [replica for replica in super()._candidates(request) if not self._desk.is_prefill(replica.pool)]

    def _senders(self) -> list[Address]:
        """Addresses that could prefill for others now."""
        return [
            replica
            for replica in self._places.candidates()
            if self._desk.is_prefill(replica.pool) and not self._circuits.is_open(replica.number, self._env.now)
        ]

    def _submit(self, errand: Errand, address: Address) -> None:
        if errand.num_lost:
            self._exchange.begin_anew(errand.row)
        handover = self._desk.begin(errand.attempt, address, self._senders())
        if handover is None:
            super()._submit(errand, address)
            return
        place = self._places.at(handover.sender.number)
        place.in_flight[handover.prefill] = None
        if place.state is State.READY:
            handover.sender.submit(handover.prefill)
        else:  # lost, and not noticed yet
            self.lost(place, [handover.prefill])

    def prefilled(self, number: int, prefills: Sequence[Request]) -> None:
        """Prompts have been computed at the address of that number, whose engines hold their KV from now on."""
        place = self._places.at(number)
        for prefill in prefills:
            del place.in_flight[prefill]
            self._circuits.succeeded(number, self._env.now)
            for watch in self._watches.values():
                watch.prefilled(self._errands[prefill.index], place.number, self._env.now)
        for handover in self._desk.prefilled(number, prefills):
            place.held[handover] = None
        self._places.give_back_if_drained(place)

    def _released(self, handover: Handover[Address]) -> None:
        place = self._places.at(handover.sender.number)
        place.held.pop(handover, None)
        self._places.give_back_if_drained(place)

    # -- and back --------------------------------------------------------------------------------------------------

    def _router_of(self, place: Place) -> Router:
        return self._desk.router if self._desk.is_prefill(place.pool) else self._router

    def gone(self, place: Place) -> None:
        super().gone(place)
        for number in place.replicas:
            self._exchange.gone(number)

    def _failed_at(self, request: Request) -> int | None:
        return self._handovers.failed_at(request)

    # -- losses ----------------------------------------------------------------------------------------------------

    def lost(self, place: Place, lost: Iterable[Request], returned: Mapping[Request, int] = NOTHING_RETURNED) -> None:
        """A replica is lost with these requests, or prompts."""
        for number in place.replicas:
            self._exchange.lost(number)
        if not self._desk.is_prefill(place.pool):
            for request in lost:
                self._give_up(request, is_known=False)
            super().lost(place, lost, returned)
            return
        for handover in list(place.held):
            self._handovers.sender_is_gone(handover)
        place.held.clear()
        for prefill in lost:
            self._lose_prefill(place, prefill)
        self.dispatch_soon()

    def _lose_prefill(self, place: Place, prefill: Request) -> None:
        handover = self._handovers.of(prefill)
        assert handover is not None, "it is being computed for somebody"
        self._drop(handover)
        errand = self._errands[prefill.index]
        receiver = errand.place
        self._leave(errand)
        self._count_loss(handover.sender.number)
        self._lose(errand, self._loss_of(place))
        assert receiver is not None, "it was to be answered somewhere"
        self._places.give_back_if_drained(receiver)

    def _drop(self, handover: Handover[Address]) -> None:
        """What is being prefilled will be fetched by nobody."""
        number = handover.sender.number
        self._handovers.drop(handover)
        del self._places.at(number).in_flight[handover.prefill]
        if self._desk.router.listens:
            self._desk.router.answered(handover.prefill, number)

    def _give_up(self, request: Request, *, is_known: bool) -> None:
        """A request leaves its decode replica unanswered; `is_known` to that, which tells the sender, unless it is lost itself."""
        handover = self._handovers.of(request)
        if handover is None:
            return
        if handover.sent is not None:
            (self._handovers.is_not_wanted if is_known else self._handovers.receiver_is_gone)(handover)
            return
        self._drop(handover)
        handover.sender.abort(handover.prefill, reason=GIVEN_UP)
        self._places.give_back_if_drained(self._places.at(handover.sender.number))

    def _abort(self, errand: Errand, address: Address, reason: str) -> None:
        handover = self._handovers.of(errand.attempt)
        self._give_up(errand.attempt, is_known=True)
        if handover is None or handover.is_delivered:
            super()._abort(errand, address, reason)
        else:
            self._table.fail(errand.attempt, 0, reason, errand.replica)
