"""KV on its way from the replica that prefills a request to the one that decodes it.

Follows vLLM's NIXL connector in pull mode: the decode replica asks for the KV when it admits the request, and the prefill
replica keeps it until all of it has come, or until its lease ends. Deliberate differences: who asks for KV that is no longer there is told so
at once; a pull that has begun ends well though the lease ends meanwhile.
"""

from collections.abc import Callable, Sequence

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, FLEET, At, call_at
from sim.cluster.leases import Lease
from sim.cluster.network import Network
from sim.cluster.replica import LiveReplica
from sim.engine.records import Floats, Ints
from sim.engine.request import Request
from sim.engine.walking.connector import Transfer
from sim.memory.transfers import ReplicaKV


class Handover:
    """One request's KV on its way from the replica that prefills it to the one that decodes it.

    `sent` is the sender's side of the transfer, once there is something to send, and until it `is_released`; the receiver knows of the request once it
    `is_delivered`. With `is_lost` there is nothing left to be fetched, with `is_dropped` nobody wants it any more.
    """

    def __init__(self, prefill: Request, request: Request, sender: LiveReplica, receiver: LiveReplica) -> None:
        self.prefill = prefill
        self.request = request
        self.sender = sender
        self.receiver = receiver
        self.sent: Transfer | None = None
        self.pulling: simpy.Process | None = None
        self.is_delivered = False
        self.is_released = False
        self.is_lost = False
        self.is_dropped = False


class Handovers:
    """The peer of every engine: what is to be sent on, what can be had from elsewhere, and how long it is under way.

    `on_released` is told of a handover whose sender has given its blocks back. A request whose KV could not be had is computed by its decode
    replica, if that `recomputes`; else it ends there, and `has_failed` says so.
    """

    def __init__(
        self, network: Network, kvs: Sequence[ReplicaKV], num_requests: int, lease: Lease, *, recomputes: bool = False
    ) -> None:
        """`kvs` are those of the replicas, by number."""
        self._network = network
        self._kvs = kvs
        self._env = network.env
        self._lease = lease
        self._recomputes = recomputes
        self._of: dict[Request, Handover] = {}
        self._failed: set[Request] = set()
        self.on_released: Callable[[Handover], None] = lambda _handover: None
        self.table = HandoverTable(num_requests)

    def add(self, handover: Handover) -> None:
        """A request begins its way."""
        self._of[handover.prefill] = self._of[handover.request] = handover

    def of(self, request: Request) -> Handover | None:
        """That of a request or of its prefill, as long as it is under way."""
        return self._of.get(request)

    def has_failed(self, request: Request) -> bool:
        """Whether a request that has ended did so because its KV could not be had; to be asked for once."""
        if request not in self._failed:
            return False
        self._failed.remove(request)
        return True

    # -- what befalls it -----------------------------------------------------------------------------------------------

    def drop(self, handover: Handover) -> None:
        """Nobody wants it any more; whoever knows of it forgets it."""
        handover.is_dropped = True
        self._of.pop(handover.prefill, None)
        self._of.pop(handover.request, None)

    def sender_is_gone(self, handover: Handover) -> None:
        """What was to be fetched is lost, also what is being fetched."""
        handover.is_lost = handover.is_released = True
        if handover.pulling is not None:
            handover.pulling.interrupt()

    def receiver_is_gone(self, handover: Handover) -> None:
        """Nobody will fetch what has been prefilled, and the sender hears nothing of it before its lease ends."""
        self.drop(handover)
        if handover.pulling is not None:
            handover.pulling.interrupt()
        assert handover.sent is not None, "it has been prefilled"
        if self._lease.is_renewed:
            end_s = self._lease.end_s(handover.sent.start_s, self._env.now)
            call_at(self._env, end_s, FLEET, lambda: self._expire(handover))

    def is_not_wanted(self, handover: Handover) -> None:
        """The receiver has dropped the request; if it has not asked for the KV, it tells the sender."""
        if handover.pulling is None:
            self.drop(handover)
            self._release(handover)

    def _expire(self, handover: Handover) -> None:
        if handover.is_released:
            return
        handover.is_lost = handover.pulling is None
        self.table.num_expired += 1
        self._release(handover)

    def _release(self, handover: Handover) -> None:
        if handover.is_released:
            return
        handover.is_released = True
        assert handover.sent is not None, "it has been prefilled"
        handover.sent.end_s = self._env.now
        handover.sender.wake()
        self.on_released(handover)

    # -- what engines ask, as a Peer -----------------------------------------------------------------------------------

    def num_tokens_elsewhere(self, request: Request) -> int:
        handover = self._of.get(request)
        if handover is None or handover.request is not request or handover.pulling is not None:
            return 0
        return handover.prefill.num_prompt_tokens

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def is_sent_on(self, request: Request) -> bool:
        handover = self._of.get(request)
        return handover is not None and handover.prefill is request

    def begin(self, transfer: Transfer) -> None:
        handover = self._of[transfer.request]
        if transfer.request is not handover.prefill:
            handover.pulling = self._env.process(self._pull(handover, transfer))
            return
        handover.sent = transfer
        if not self._lease.is_renewed:
            call_at(self._env, transfer.start_s + self._lease.duration_s, FLEET, lambda: self._expire(handover))

    def _pull(self, handover: Handover, transfer: Transfer) -> Process:
        try:
            if transfer.start_s > self._env.now or handover.is_lost:  # the batch that asks does not tell of it
                yield At(self._env, transfer.start_s, ANSWER)
            if not handover.is_lost:
                yield from self._move(handover, transfer)
        except simpy.Interrupt:  # one of the two is gone
            if handover.is_dropped:
                return
        handover.pulling = None
        if handover.is_lost:
            self._fail(handover.request, transfer)
        transfer.end_s = self._env.now
        self._release(handover)
        handover.receiver.wake()
        self.drop(handover)

    def _move(self, handover: Handover, transfer: Transfer) -> Process:
        begun_s, request = self._env.now, handover.request
        num_tokens, sender, receiver = (
            handover.prefill.num_prompt_tokens,
            handover.sender.number,
            handover.receiver.number,
        )
        num_local = num_tokens - transfer.num_tokens
        load = self._kvs[receiver].pulled(num_local, num_tokens, sender_gpus=self._kvs[sender].num_gpus)
        yield from self._network.pull(sender, receiver, load)
        self.table.write(request.index, begun_s, self._env.now, load.num_bytes)

    def _fail(self, request: Request, transfer: Transfer) -> None:
        transfer.has_failed = True
        self.table.num_failed += 1
        if not self._recomputes:
            self._failed.add(request)


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
