"""KV on its way from the replica that prefills a request to the one that decodes it.

Follows vLLM's NIXL connector in pull mode: the decode replica asks for the KV when it admits the request, and the prefill
replica keeps it until all of it has come. Deliberate difference: no lease ends, since nobody fails to fetch what was prefilled.
"""

from collections.abc import Sequence

import numpy as np

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, At
from sim.cluster.network import Network
from sim.cluster.replica import LiveReplica, Replica
from sim.engine.records import Floats, Ints
from sim.engine.request import Request
from sim.engine.walking.connector import Transfer
from sim.memory.transfers import ReplicaKV


class Handover:
    """One request's KV on its way from the replica that prefills it to the one that decodes it.

    `sent` is the sender's side of the transfer, once there is something to send.
    """

    sent: Transfer | None = None
    is_asked_for: bool = False

    def __init__(self, prefill: Request, request: Request, sender: Replica, receiver: Replica) -> None:
        self.prefill = prefill
        self.request = request
        self.sender = sender
        self.receiver = receiver


class Handovers:
    """The peer of every engine: what is to be sent on, what can be had from elsewhere, and how long it is under way."""

    def __init__(self, network: Network, kvs: Sequence[ReplicaKV], num_requests: int) -> None:
        """`kvs` are those of the replicas, by number."""
        self._network = network
        self._kvs = kvs
        self._env = network.env
        self._replicas: Sequence[LiveReplica] = ()
        self._of: dict[Request, Handover] = {}
        self.table = HandoverTable(num_requests)

    def connect(self, replicas: Sequence[LiveReplica]) -> None:
        """These are all there are, by number."""
        self._replicas = replicas

    def add(self, handover: Handover) -> None:
        """A request begins its way."""
        self._of[handover.prefill] = self._of[handover.request] = handover

    def prefilled(self, request: Request) -> Handover:
        """What a prefill, which has ended, was for."""
        return self._of[request]

    # -- what engines ask, as a Peer -----------------------------------------------------------------------------------

    def num_tokens_elsewhere(self, request: Request) -> int:
        handover = self._of.get(request)
        is_there = handover is not None and handover.request is request and not handover.is_asked_for
        return request.num_prompt_tokens if is_there else 0

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def is_sent_on(self, request: Request) -> bool:
        handover = self._of.get(request)
        return handover is not None and handover.prefill is request

    def begin(self, transfer: Transfer) -> None:
        handover = self._of[transfer.request]
        if transfer.request is handover.prefill:
            handover.sent = transfer
        else:
            handover.is_asked_for = True
            self._env.process(self._pull(handover, transfer))

    def _pull(self, handover: Handover, transfer: Transfer) -> Process:
        env, request = self._env, handover.request
        if transfer.start_s > env.now:
            yield At(env, transfer.start_s, ANSWER)
        begun_s, num_tokens = env.now, request.num_prompt_tokens
        sender, receiver = self._kvs[handover.sender.number], self._kvs[handover.receiver.number]
        load = receiver.pulled(num_tokens - transfer.num_tokens, num_tokens, sender_gpus=sender.num_gpus)
        yield from self._network.pull(handover.sender.number, handover.receiver.number, load)
        assert handover.sent is not None, "what is pulled has been prefilled"
        transfer.end_s = handover.sent.end_s = env.now
        for replica in (handover.sender, handover.receiver):
            self._replicas[replica.number].wake()
        self.table.write(request.index, begun_s, env.now, load.num_bytes)
        del self._of[handover.prefill], self._of[request]


class HandoverTable:
    """When each request's KV was asked for and had come, and the bytes; NaN and 0 where nothing was handed over."""

    def __init__(self, num_requests: int) -> None:
        self.start_s: Floats = np.full(num_requests, np.nan)
        self.end_s: Floats = np.full(num_requests, np.nan)
        self.num_bytes: Ints = np.zeros(num_requests, dtype=np.int64)

    def write(self, row: int, start_s: float, end_s: float, num_bytes: int) -> None:
        self.start_s[row], self.end_s[row], self.num_bytes[row] = start_s, end_s, num_bytes
