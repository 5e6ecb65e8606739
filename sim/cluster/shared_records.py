"""The records of KV that replicas share: by a store, or by pulls from each other."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cluster.handover_records import PortUse
from sim.engine.records import Floats, Ints


@dataclass(frozen=True)
class StoreRecords:
    """Chunks that there is room for, that were there at most, and that made room; `ports` are the replicas' and, last, its own."""

    num_chunks: int
    most_chunks: int
    num_evictions: int
    chunk_bytes: int
    ports: tuple[PortUse, ...]


class PullRecords(NamedTuple):
    """From whom each request's prefix was pulled, when, and how much; -1, NaN and 0 where none was."""

    source: Ints
    start_s: Floats
    end_s: Floats
    num_tokens: Ints
    num_bytes: Ints
    ports: tuple[PortUse, ...]

    @property
    def are_pulled(self) -> NDArray[np.bool_]:
        """Requests with a pull."""
        return self.source >= 0


SharedRecords = StoreRecords | PullRecords
