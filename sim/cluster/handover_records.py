"""The records of what was handed over: by request, and by port of the network."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sim.cluster.handovers import HandoverTable
from sim.cluster.network import ReplicaPort
from sim.engine.records import Floats, Ints, RequestRecords
from sim.engine.request_table import RequestTable


class PortUse(NamedTuple):
    """What went out of a replica or into it: bytes, the seconds in which anything did, and the bandwidth there is."""

    replica: int
    direction: str
    moved_bytes: float
    busy_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class HandoverRecords:
    """One entry a request, NO_REPLICA and NaN where it was not handed over; and the ports.

    `num_failed` pulls found nothing or broke off, `num_expired` leases ended. `prefills` are the requests of one token that prefill replicas served; a decode replica asks for the KV at `pull_start_s`
    and has it at `pull_end_s`.
    """

    prefills: RequestRecords
    prefill_replica: Ints
    pull_start_s: Floats
    pull_end_s: Floats
    pulled_bytes: Ints
    ports: tuple[PortUse, ...]
    num_failed: int = 0
    num_expired: int = 0

    @classmethod
    def of(cls, prefills: RequestTable, pulls: HandoverTable, ports: Iterable[ReplicaPort]) -> Self:
        return cls(
            prefills.records(),
            prefills.replica,
            pulls.start_s,
            pulls.end_s,
            pulls.num_bytes,
            uses_of(ports),
            pulls.num_failed,
            pulls.num_expired,
        )

    def sent_at(self, arrival_s: Floats) -> Self:
        """The same of requests whose clients sent them at those times."""
        return replace(self, prefills=replace(self.prefills, arrival_s=arrival_s))

    @property
    def prefill_end_s(self) -> Floats:
        """When the prompt had been computed."""
        return self.prefills.finish_s

    @property
    def are_handed_over(self) -> NDArray[np.bool_]:
        """Requests whose KV was moved."""
        return ~np.isnan(self.pull_end_s)


def uses_of(ports: Iterable[ReplicaPort]) -> tuple[PortUse, ...]:
    """What went through each of them."""
    return tuple(
        PortUse(number, direction, port.moved_bytes, port.busy_s, port.bytes_per_s) for number, direction, port in ports
    )
