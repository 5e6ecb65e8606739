"""The network between replicas: each has its cards' bandwidth out and in, which all of its transfers share."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import TRANSFER, At
from sim.cluster.links import Links, Port
from sim.memory.transfers import Load


@dataclass(frozen=True, slots=True)
class NetworkCosts:
    """`bytes_per_s` of each GPU's card, each way; a transfer takes `latency_s`, and `descriptor_s` for each of its descriptors.

    Two replicas that have never met shake hands first, for `handshake_s`.
    """

    bytes_per_s: float
    latency_s: float
    descriptor_s: float
    handshake_s: float = 0.0


class ReplicaPort(NamedTuple):
    """One direction of a replica's cards."""

    replica: int
    direction: Literal["out", "in"]
    port: Port


class Network:
    """Ports of replicas, by the order in which they were added, and the pairs that have met, for transfers of one kind."""

    def __init__(self, env: simpy.Environment, costs: NetworkCosts, num_gpus: Iterable[int] = ()) -> None:
        """Of replicas that have so many GPUs each."""
        self.env = env
        self._costs = costs
        self._links = Links(env)
        self._out: list[Port] = []
        self._in: list[Port] = []
        self._met_s: dict[tuple[int, int], float] = {}
        for number in num_gpus:
            self.add(number)

    def at(self, costs: NetworkCosts) -> "Network":
        """The same ports, for transfers that have costs of their own, whoever has met for others."""
        beside = Network(self.env, costs)
        beside._links, beside._out, beside._in = self._links, self._out, self._in
        return beside

    def add(self, num_gpus: int) -> int:
        """A replica, whose GPUs have a card each; its number here."""
        return self.add_node(num_gpus * self._costs.bytes_per_s)

    def add_node(self, bytes_per_s: float) -> int:
        """Whoever sends and takes so much each way; its number here."""
        number = len(self._out)
        self._out.append(Port(f"{number} out", bytes_per_s))
        self._in.append(Port(f"{number} in", bytes_per_s))
        return number

    @property
    def ports(self) -> Iterator[ReplicaPort]:
        """Each replica's way out and way in, one replica after the other."""
        for number, (out, into) in enumerate(zip(self._out, self._in, strict=True)):
            yield ReplicaPort(number, "out", out)
            yield ReplicaPort(number, "in", into)

    def pull(self, sender: int, receiver: int, load: Load) -> Process:
        """A process: from the moment at which the receiver asks to that at which all has come."""
        env, costs = self.env, self._costs
        met_s = self._met_s.setdefault((sender, receiver), env.now + costs.handshake_s)
        ready_s = max(env.now, met_s) + costs.latency_s + costs.descriptor_s * load.num_descriptors
        if ready_s > env.now:
            yield At(env, ready_s, TRANSFER)
        if load.num_bytes:
            yield from self._links.moved((self._out[sender], self._in[receiver]), load.num_bytes)

    def forget(self, number: int) -> None:
        """A replica is lost: the one that takes its place has met nobody."""
        self._met_s = {pair: met_s for pair, met_s in self._met_s.items() if number not in pair}
