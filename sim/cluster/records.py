"""The facts of a run of many replicas: each one's own, and all of them as one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np

from sim.engine.records import Ints, LeapRecords, Records, RequestRecords


class ClusterRecords(NamedTuple):
    """All replicas' records as one, requests in trace order and steps replica by replica; and each replica's own.

    `replica` tells which replica served each request, -1 for those rejected at the door.
    """

    merged: Records
    replicas: tuple[Records, ...]
    replica: Ints

    @classmethod
    def of(cls, parts: Sequence[Records], replica: Ints) -> Self:
        """What each replica recorded, and which of them served each request."""
        merged = parts[0] if len(parts) == 1 else _merged(parts, replica)
        return cls(merged, tuple(parts), replica)

    @property
    def span_s(self) -> float:
        """From the first arrival to the end of the last step of any replica; 0 where none ran."""
        ends_s = [float(part.leaps.step_end_s[-1]) for part in self.replicas if len(part.leaps)]
        return max(ends_s) - float(self.merged.requests.arrival_s[0]) if ends_s else 0.0

    @property
    def busy_fraction(self) -> float | None:
        """Share of that time in which steps were running, over all replicas; None where none ran."""
        return self.merged.leaps.busy_s / (self.span_s * len(self.replicas)) if self.span_s else None


def _merged(parts: Sequence[Records], replica: Ints) -> Records:
    return Records(
        requests=_merged_requests([part.requests for part in parts], np.maximum(replica, 0)),
        leaps=_joined_leaps([part.leaps for part in parts]),
        itl_s=np.concatenate([part.itl_s for part in parts]),
        itl_count=np.concatenate([part.itl_count for part in parts]),
        prefix_cache_queries=sum(part.prefix_cache_queries for part in parts),
        prefix_cache_hits=sum(part.prefix_cache_hits for part in parts),
        num_evictions=sum(part.num_evictions for part in parts),
    )


MEASURED = (
    "arrival_s",
    "generated_tokens",
    "first_scheduled_s",
    "first_token_s",
    "finish_s",
    "num_preemptions",
    "num_cached_tokens",
)


def _merged_requests(parts: Sequence[RequestRecords], replica: Ints) -> RequestRecords:
    """Each request as the replica that served it recorded it."""
    rows = np.arange(len(replica))
    served = {name: np.stack([getattr(part, name) for part in parts])[replica, rows] for name in MEASURED}
    first = parts[0]
    return RequestRecords(
        prompt_tokens=first.prompt_tokens, output_tokens=first.output_tokens, rejected=first.rejected, **served
    )


def _joined_leaps(parts: Sequence[LeapRecords]) -> LeapRecords:
    """One replica's leaps after the other's, passes numbered through."""
    counts = [len(part.step_end_s) for part in parts]
    offsets = np.cumsum([0, *counts[:-1]])
    columns = (
        "start_s", "num_steps", "num_decodes", "num_chunk_tokens", "num_running", "num_waiting", "num_free_blocks",
        "num_preempted", "step_end_s",
    )  # fmt: skip
    stretches = [part.decode_stretches for part in parts]
    first, last, epoch = (
        np.concatenate([getattr(part, name) + offset for part, offset in zip(stretches, offsets, strict=True)])
        for name in ("first", "last", "epoch")
    )
    return LeapRecords(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in columns},
        decode_stretches=replace(stretches[0], first=first, last=last, epoch=epoch),
    )
