"""KV on its way from the engine that prefills a request to the one that decodes it.

Follows vLLM's NIXL connector in pull mode: the decode engine asks for the KV when it admits the request, and the prefill
engine keeps it until all of it has come, or until its lease ends. Of a server of several data-parallel ranks each is such an engine: vLLM adds
the rank to its id (`engine_id` with `_dp` and the rank, v1/engine/core.py of 0.32) and to the port at which it is met (nixl/base_scheduler.py). Deliberate differences: who asks for KV that is no longer there is told so
at once; a pull that has begun ends well though the lease ends meanwhile.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import FLEET, TRANSFER, At, call_at
from sim.cluster.engine_role import Engine
from sim.cluster.leases import Lease
from sim.cluster.network import Network
from sim.cluster.replica import Replica
from sim.engine.records import Floats, Ints
from sim.engine.request import Request
from sim.engine.request_table import NO_REPLICA
from sim.engine.walking.connector import Transfer
from sim.memory.transfers import ReplicaKV

ReplicaT = TypeVar("ReplicaT", bound=Replica)


class Handover(Generic[ReplicaT]):
    """One request's KV on its way from the address that it is prefilled at, and its engine there, to those that it is decoded at.

    The engines' numbers are known when they speak of it. `sent` is the sender's side of the transfer, once there is something to send, and until it `is_released`; the receiver knows of the request once it
    `is_delivered`. With `is_lost` there is nothing left to be fetched, with `is_dropped` nobody wants it any more.
    """

    def __init__(self, prefill: Request, request: Request, sender: ReplicaT, receiver: ReplicaT) -> None:
        self.prefill = prefill
        self.request = request
        self.sender = sender
        self.receiver = receiver
        self.sending_engine = self.receiving_engine = NO_REPLICA
        self.sent: Transfer | None = None
        self.pulling: simpy.Process | None = None
        self.is_delivered = False
        self.is_released = False
        self.is_lost = False
        self.is_dropped = False


class Handovers:
    """What is to be sent on, what can be had from elsewhere, and how long it is under way between `engines`, which stand there by number.

    `on_released` is told of a handover whose sender has given its blocks back. A request whose KV could not be had is computed by its decode
    engine, if that `recomputes`; else it ends there, and `failed_at` says so.
    """

    def __init__(
        self, network: Network, kvs: Sequence[ReplicaKV], num_requests: int, lease: Lease, *, recomputes: bool = False
    ) -> None:
        """`kvs` are those of the engines, by number."""
        self._network = network
        self._kvs = kvs
        self._env = network.env
        self._lease = lease
        self._recomputes = recomputes
        self._of: dict[Request, Handover[Any]] = {}
        self._failed: dict[Request, int] = {}
        self.engines: dict[int, Engine] = {}
        self.on_released: Callable[[Handover[Any]], None] = lambda _handover: None
        self.table = HandoverTable(num_requests)

    def add(self, handover: Handover[Any]) -> None:
        """A request begins its way."""
        self._of[handover.prefill] = self._of[handover.request] = handover

    def of(self, request: Request) -> Handover[Any] | None:
        """That of a request or of its prefill, as long as it is under way."""
        return self._of.get(request)

    def failed_at(self, request: Request) -> int | None:
        """The engine at which a request has ended because its KV could not be had, if it has; to be asked for once."""
        return self._failed.pop(request, None)

    # -- what befalls it -----------------------------------------------------------------------------------------------

    def drop(self, handover: Handover[Any]) -> None:
        """Nobody wants it any more; whoever knows of it forgets it."""
        handover.is_dropped = True
        self._of.pop(handover.prefill, None)
        self._of.pop(handover.request, None)

    def sender_is_gone(self, handover: Handover[Any]) -> None:
        """What was to be fetched is lost, also what is being fetched."""
        handover.is_lost = handover.is_released = True
        if handover.pulling is not None:
            handover.pulling.interrupt()

    def receiver_is_gone(self, handover: Handover[Any]) -> None:
        """Nobody will fetch what has been prefilled, and the sender hears nothing of it before its lease ends."""
        self.drop(handover)
        if handover.pulling is not None:
            handover.pulling.interrupt()
        assert handover.sent is not None, "it has been prefilled"
        if self._lease.is_renewed:
            end_s = self._lease.end_s(handover.sent.start_s, self._env.now)
            call_at(self._env, end_s, FLEET, lambda: self._expire(handover))

    def is_not_wanted(self, handover: Handover[Any]) -> None:
        """The receiver has dropped the request, or lacks none of it; if it has not asked for the KV, it tells the sender."""
        if handover.pulling is None:
            self.drop(handover)
            self._release(handover)

    def _expire(self, handover: Handover[Any]) -> None:
        if handover.is_released:
            return
        handover.is_lost = handover.pulling is None
        self.table.num_expired += 1
        self._release(handover)

    def _release(self, handover: Handover[Any]) -> None:
        if handover.is_released:
            return
        handover.is_released = True
        assert handover.sent is not None, "it has been prefilled"
        handover.sent.end_s = self._env.now
        self.engines[handover.sending_engine].wake()
        self.on_released(handover)

    # -- what engines ask ----------------------------------------------------------------------------------------------

    def num_tokens_elsewhere(self, request: Request) -> int:
        """Of a request's prompt, before its engine has asked for them."""
        handover = self._of.get(request)
        if handover is None or handover.request is not request or handover.pulling is not None:
            return 0
        return handover.prefill.num_prompt_tokens

    def has_all(self, request: Request) -> None:
        """Full attention has as much of a request's prompt as was computed for it elsewhere, and its engine goes on behind what all layers have."""
        self.is_not_wanted(self._of[request])

    def is_sent_on(self, request: Request) -> bool:
        """Whether somebody is to fetch what was computed of it."""
        handover = self._of.get(request)
        return handover is not None and handover.prefill is request

    def begin(self, transfer: Transfer, engine: int) -> None:
        """That engine has something to be fetched, or fetches it."""
        handover = self._of[transfer.request]
        if transfer.request is not handover.prefill:
            handover.receiving_engine = engine
            handover.pulling = self._env.process(self._pull(handover, transfer))
            return
        handover.sending_engine = engine
        handover.sent = transfer
        if not self._lease.is_renewed:
            call_at(self._env, transfer.start_s + self._lease.duration_s, FLEET, lambda: self._expire(handover))

    def _pull(self, handover: Handover[Any], transfer: Transfer) -> Process:
        with suppress(simpy.Interrupt):  # one of the two is gone
            if transfer.start_s > self._env.now or handover.is_lost:  # the batch that asks does not tell of it
                yield At(self._env, transfer.start_s, TRANSFER)
            if not handover.is_lost:
                yield from self._move(handover, transfer)
        handover.pulling = None
        if handover.is_dropped:
            return
        if handover.is_lost:
            self._fail(handover, transfer)
        transfer.end_s = self._env.now
        self._release(handover)
        self.engines[handover.receiving_engine].wake()
        self.drop(handover)

    def _move(self, handover: Handover[Any], transfer: Transfer) -> Process:
        begun_s, request = self._env.now, handover.request
        num_tokens, sender, receiver = (
            handover.prefill.num_prompt_tokens,
            handover.sending_engine,
            handover.receiving_engine,
        )
        num_local = num_tokens - transfer.num_tokens
        load = self._kvs[receiver].pulled(num_local, num_tokens, sender_gpus=self._kvs[sender].num_gpus)
        yield from self._network.pull(sender, receiver, load)
        self.table.write(request.index, begun_s, self._env.now, load.num_bytes)

    def _fail(self, handover: Handover[Any], transfer: Transfer) -> None:
        transfer.has_failed = True
        self.table.num_failed += 1
        if not self._recomputes:
            self._failed[handover.request] = handover.receiving_engine


class Side:
    """The Peer of the engine of that number."""

    def __init__(self, handovers: Handovers, engine: int) -> None:
        self._engine = engine
        self._handovers = handovers
        self.num_tokens_elsewhere = handovers.num_tokens_elsewhere
        self.has_all = handovers.has_all
        self.is_sent_on = handovers.is_sent_on

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def begin(self, transfer: Transfer) -> None:
        self._handovers.begin(transfer, self._engine)


class HandoverTable:
    """When each request's KV was asked for and had come, and the bytes; NaN and 0 where nothing was handed over.

    `num_failed` pulls found nothing or broke off; `num_expired` leases ended before anybody asked.
    """

    def __init__(self, num_requests: int) -> None:
        self.start_s: Floats = np.full(num_requests, np.nan)
        self.end_s: Floats = np.full(num_requests, np.nan)
        self.num_bytes: Ints = np.zeros(num_requests, dtype=np.int64)
        self.num_failed = 0
        self.num_expired = 0

    def write(self, row: int, start_s: float, end_s: float, num_bytes: int) -> None:
        self.start_s[row], self.end_s[row], self.num_bytes[row] = start_s, end_s, num_bytes

    def clear(self, row: int) -> None:
        self.write(row, np.nan, np.nan, 0)
