"""The facts of a run, in columns; every statistic is computed from them afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from sim.engine import columns
from sim.engine.leap_records import LeapRecords
from sim.engine.step_records import StepRecords

Floats = columns.Floats
Ints = columns.Ints


@dataclass(frozen=True)
class RequestRecords:
    """One entry a request, in trace order. Times are NaN where the thing never happened."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints  # asked for, capped by max_model_len
    generated_tokens: Ints
    first_scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    num_preemptions: Ints
    num_cached_tokens: Ints  # prefix-cache hit at first admission
    rejected: Mapping[int, str]  # the reasons, by row
    failed: Mapping[int, str]  # of those aborted before their last token: the reasons, by row

    def __len__(self) -> int:
        return len(self.arrival_s)

    def only(self, rows: Ints) -> "RequestRecords":
        """The requests in some rows, given in order."""
        names = [field.name for field in fields(self) if field.name not in {"rejected", "failed"}]
        return RequestRecords(
            **{name: getattr(self, name)[rows] for name in names},
            rejected=_of_rows(self.rejected, rows),
            failed=_of_rows(self.failed, rows),
        )


def _of_rows(reasons: Mapping[int, str], rows: Ints) -> dict[int, str]:
    return {place: reasons[row] for place, row in enumerate(rows.tolist()) if row in reasons} if reasons else {}


class Gaps(NamedTuple):
    """Times between tokens of a request, and how often each occurred."""

    times_s: Floats
    counts: Ints


class GapColumn(Protocol):
    """Gaps that are made when they are asked for."""

    def __len__(self) -> int:
        """The number of entries."""
        ...

    def part(self, first: int, end: int) -> Gaps:
        """Those from entry `first` to before `end`."""
        ...

    def __call__(self) -> Gaps:
        """All of them."""
        ...


@dataclass(frozen=True)
class OffloadRecords:
    """What a CPU tier or a store did: the rows of requests that loaded from it with how many tokens, load by load, and bytes over all GPUs.

    `external_prefix_cache_hits` are tokens loaded for requests that had not been preempted, as vLLM counts them.
    """

    loaded_rows: Ints
    loaded_tokens: Ints
    loaded_bytes: int
    stored_bytes: int
    external_prefix_cache_hits: int

    def __reduce__(self) -> tuple[object, ...]:
        return OffloadRecords, tuple(getattr(self, field.name) for field in fields(OffloadRecords))

    @classmethod
    def joined(cls, parts: "Sequence[OffloadRecords]") -> "OffloadRecords | None":
        """Of several replicas; None where none has one."""
        if not parts:
            return None
        return cls(
            loaded_rows=np.concatenate([part.loaded_rows for part in parts]),
            loaded_tokens=np.concatenate([part.loaded_tokens for part in parts]),
            loaded_bytes=sum(part.loaded_bytes for part in parts),
            stored_bytes=sum(part.stored_bytes for part in parts),
            external_prefix_cache_hits=sum(part.external_prefix_cache_hits for part in parts),
        )

    def of_requests(self, request: Ints) -> "OffloadRecords":
        """The same of answers whose requests these are."""
        return replace(self, loaded_rows=request[self.loaded_rows])

    def tokens_by_row(self, num_rows: int) -> Ints:
        """Tokens that each request of the run has loaded."""
        return np.bincount(self.loaded_rows, self.loaded_tokens, minlength=num_rows).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LoraRecords:
    """Adapters brought into slots of the GPU, those of them that were read from storage first, and seconds that this took."""

    num_copies: int
    num_reads: int
    load_s: float

    def __reduce__(self) -> tuple[object, ...]:
        return LoraRecords, (self.num_copies, self.num_reads, self.load_s)

    @classmethod
    def joined(cls, parts: Sequence["LoraRecords"]) -> "LoraRecords | None":
        """Of several engines; None where none has adapters."""
        if not parts:
            return None
        return cls(sum(p.num_copies for p in parts), sum(p.num_reads for p in parts), sum(p.load_s for p in parts))


@dataclass(frozen=True, slots=True)
class SwapRecords:
    """Requests swapped out, bytes copied either way over all GPUs, seconds that steps waited for that, and the largest share of the space used."""

    num_swapped_out: int
    num_bytes: int
    copy_s: float
    most_used: float

    def __reduce__(self) -> tuple[object, ...]:
        return SwapRecords, (self.num_swapped_out, self.num_bytes, self.copy_s, self.most_used)

    @classmethod
    def joined(cls, parts: Sequence["SwapRecords"]) -> "SwapRecords | None":
        """Of several engines; None where none swaps."""
        if not parts:
            return None
        return cls(
            num_swapped_out=sum(part.num_swapped_out for part in parts),
            num_bytes=sum(part.num_bytes for part in parts),
            copy_s=sum(part.copy_s for part in parts),
            most_used=max(part.most_used for part in parts),
        )


@dataclass(frozen=True)
class SpeculationRecords:
    """Verifications by how many drafts they accepted, from 0 on, and the drafts that they had; padding counts for nothing."""

    verified: tuple[int, ...]
    num_draft_tokens: int

    def __reduce__(self) -> tuple[object, ...]:
        return SpeculationRecords, (self.verified, self.num_draft_tokens)

    @classmethod
    def joined(cls, parts: "Sequence[SpeculationRecords]") -> "SpeculationRecords | None":
        """Of several replicas; None where none speculates."""
        if not parts:
            return None
        verified = zip_longest(*(part.verified for part in parts), fillvalue=0)
        return cls(tuple(map(sum, verified)), sum(part.num_draft_tokens for part in parts))


@dataclass(frozen=True)
class EngineRecords:
    """What a replica leaves: its leaps, its inter-token gaps and cache totals.

    `offload` is what a CPU tier did, `stored` what a store did. `stage_busy_s` is how long each pipeline stage has run, over all replicas; None without stages, or of different numbers of them.
    """

    leaps: LeapRecords
    gaps: GapColumn
    prefix_cache_queries: int  # tokens, as vLLM counts them
    prefix_cache_hits: int
    num_evictions: int
    offload: OffloadRecords | None
    stored: OffloadRecords | None
    lora: LoraRecords | None
    swaps: SwapRecords | None
    speculation: SpeculationRecords | None
    stage_busy_s: tuple[float, ...] | None

    def __reduce__(self) -> tuple[object, ...]:
        return EngineRecords, tuple(getattr(self, field.name) for field in fields(EngineRecords))

    @cached_property
    def steps(self) -> StepRecords:
        """Every step by itself, expanded from the leaps when first asked for."""
        return self.leaps.steps()


@dataclass(frozen=True)
class Records(EngineRecords):
    """What a run leaves: that of all replicas one after the other, and the requests."""

    requests: RequestRecords
