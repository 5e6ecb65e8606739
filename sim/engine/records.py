"""The facts of a run, in columns; every statistic is computed from them afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]

SAME_IN_ALL_PASSES = ("num_decodes", "num_chunk_tokens", "num_chunks", "num_sampled", "num_running", "num_waiting")
"""Columns that the passes of a leap have in common."""


STRETCHES_AT_ONCE = 16_384


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


@dataclass(frozen=True)
class StepRecords:
    """One entry a step that ran tokens, in order of launch."""

    start_s: Floats
    end_s: Floats
    num_decodes: Ints  # requests with one scheduled token
    decode_context_tokens: Ints  # sum of their contexts after the step
    num_chunk_tokens: Ints  # tokens of all others
    num_chunks: Ints  # how many others there are
    num_sampled: Ints  # requests that get a token of the step
    num_running: Ints  # after scheduling
    num_waiting: Ints
    num_free_blocks: Ints
    num_preempted: Ints  # since the step before
    chunk_tokens: Ints  # of each chunk, step after step
    chunk_computed_tokens: Ints  # computed before each chunk

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True)
class DecodeStretches:
    """Unbroken runs of passes in which one request decoded: the first, how many follow it, and tokens of context after it.

    `passing_delays` has an entry for each KV group with a window: a decode gives back a block of it in passes that lie
    whole multiples of the block size behind its epoch plus this delay.
    """

    first: Ints
    num_further: Ints
    context_tokens: Ints
    block_size: int
    blocks_at_once: int  # one for each KV group
    passing_delays: tuple[int, ...] = ()

    @property
    def give_back(self) -> bool:
        """Whether decodes give blocks back while they run."""
        return bool(self.passing_delays)

    def blocks_taken(self, num_passes: int) -> Ints:
        """Blocks that decodes took in each pass, less those they gave back: one is taken when a block is full."""
        taken = np.zeros(num_passes, dtype=np.int32)
        for begin in range(0, len(self.first), STRETCHES_AT_ONCE):
            part = slice(begin, begin + STRETCHES_AT_ONCE)
            first = self.first[part]
            last, epoch = first + self.num_further[part], first - self.context_tokens[part]
            self._count(taken, first, last, epoch + 1, self.blocks_at_once)
            for delay in self.passing_delays:
                passed = epoch + delay
                self._count(taken, np.maximum(first, passed + self.block_size), last, passed, -1)
        return taken

    def _count(self, taken: Ints, first: Ints, last: Ints, phase: Ints, num_blocks: int) -> None:
        """Count blocks where each stretch takes them, which is once in `block_size` passes."""
        size = self.block_size
        first = first + (phase - first) % size
        counts = np.maximum(0, (last - first) // size + 1)
        starts = np.repeat(first - size * (np.cumsum(counts) - counts), counts)
        passes = starts + size * np.arange(len(starts))
        passes = passes[passes < len(taken)]
        if len(passes):
            begin = int(passes.min())  # stretches stand in order of their ends, so that those of a part lie together
            found = np.bincount(passes - begin)
            taken[begin : begin + len(found)] += found.astype(np.int32) * num_blocks


class JoinedStretches(NamedTuple):
    """Of several replicas one after the other, each with so many passes."""

    parts: "Sequence[DecodeStretches | JoinedStretches]"
    num_passes: Sequence[int]

    @property
    def give_back(self) -> bool:
        return any(part.give_back for part in self.parts)

    def blocks_taken(self, num_passes: int) -> Ints:
        """In each pass of all; `num_passes` is their number."""
        assert num_passes == sum(self.num_passes), "stretches of other passes"
        taken = [part.blocks_taken(count) for part, count in zip(self.parts, self.num_passes, strict=True)]
        return np.concatenate(taken)


@dataclass(frozen=True)
class LeapRecords:
    """One entry a leap: consecutive passes that ran the same decodes, or one pass with anything else in it.

    Columns as in StepRecords; contexts are those after the first pass, blocks those free after the last. `step_end_s` has
    an entry a pass, also for those that only preempted and so ran no step; `decode_stretches` says in which pass of a leap
    blocks were taken. `overlap_s` is how long the one before still ran: stages of a pipeline do; None where nothing overlaps.
    """

    start_s: Floats
    num_steps: Ints
    num_decodes: Ints
    decode_context_tokens: Ints
    num_chunk_tokens: Ints
    num_chunks: Ints
    num_sampled: Ints
    num_running: Ints
    num_waiting: Ints
    num_free_blocks: Ints
    num_preempted: Ints
    chunk_tokens: Ints
    chunk_computed_tokens: Ints
    step_end_s: Floats
    decode_stretches: DecodeStretches | JoinedStretches
    overlap_s: Floats | None = None

    def __len__(self) -> int:
        return len(self.start_s)

    @cached_property
    def first_step(self) -> Ints:
        """The number of each leap's first pass."""
        return np.asarray(np.cumsum(self.num_steps) - self.num_steps)

    @property
    def last_step(self) -> Ints:
        """The number of each leap's last pass."""
        return np.cumsum(self.num_steps) - 1

    @cached_property
    def ran(self) -> NDArray[np.bool_]:
        """Which leaps ran tokens."""
        return (self.num_decodes + self.num_chunk_tokens) > 0

    @cached_property
    def num_ran_steps(self) -> int:
        return int(self.num_steps[self.ran].sum())

    @cached_property
    def busy_s(self) -> float:
        """Time in which a step was running."""
        return float(self.durations_s().sum())

    def durations_s(self) -> Floats:
        """Of each leap, without what overlaps with the one before; a new array each time."""
        durations_s = self.step_end_s[self.last_step]
        durations_s -= self.start_s
        if self.overlap_s is not None:
            durations_s -= self.overlap_s
        return durations_s

    @property
    def fewest_free_blocks(self) -> int:
        """After any pass; within a leap blocks are only taken, but where windows give some back."""
        return int((self._free_blocks() if self.decode_stretches.give_back else self.num_free_blocks).min())

    def _free_blocks(self) -> Ints:
        """Blocks free after each pass."""
        taken = self.decode_stretches.blocks_taken(len(self.step_end_s))
        taken_since = np.cumsum(taken[::-1])[::-1] - taken
        at_last = self.num_free_blocks - taken_since[self.last_step]
        return np.asarray(np.repeat(at_last, self.num_steps) + taken_since)

    def steps(self) -> StepRecords:
        """Every step by itself."""
        counts = self.num_steps
        start_s = np.concatenate(([0.0], self.step_end_s[:-1])) if len(self) else self.start_s
        start_s[self.first_step] = self.start_s
        free = self._free_blocks()
        ran = np.repeat(self.ran, counts)
        return StepRecords(
            start_s=start_s[ran],
            end_s=self.step_end_s[ran],
            decode_context_tokens=self._decode_context_tokens()[ran],
            num_free_blocks=free[ran],
            num_preempted=_with_the_next(np.repeat(self.num_preempted, counts), ran),
            chunk_tokens=self.chunk_tokens,
            chunk_computed_tokens=self.chunk_computed_tokens,
            **{name: np.repeat(getattr(self, name), counts)[ran] for name in SAME_IN_ALL_PASSES},
        )

    def _decode_context_tokens(self) -> Ints:
        """Sums of the decodes' contexts after each pass: every one adds a token to each."""
        numbers = np.arange(len(self.step_end_s)) - np.repeat(self.first_step, self.num_steps)
        first = np.repeat(self.decode_context_tokens, self.num_steps)
        return np.asarray(first + numbers * np.repeat(self.num_decodes, self.num_steps))


def _with_the_next(counts: Ints, ran: NDArray[np.bool_]) -> Ints:
    """The counts of those that ran, in which each of the others is added to the next, or to the last of all."""
    kept = counts[ran]
    others = np.flatnonzero(counts * ~ran)
    if len(kept):
        np.add.at(kept, np.minimum(np.cumsum(ran)[others], len(kept) - 1), counts[others])
    return kept


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
    """What a CPU tier did: the rows of requests that loaded from it with how many tokens, load by load, and bytes over all GPUs.

    `external_prefix_cache_hits` are tokens loaded for requests that had not been preempted, as vLLM counts them.
    """

    loaded_rows: Ints
    loaded_tokens: Ints
    loaded_bytes: int
    stored_bytes: int
    external_prefix_cache_hits: int

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

    def tokens_by_row(self, num_rows: int) -> Ints:
        """Tokens that each request of the run has loaded."""
        return np.bincount(self.loaded_rows, self.loaded_tokens, minlength=num_rows).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LoraRecords:
    """Adapters brought into slots of the GPU, those of them that were read from storage first, and seconds that this took."""

    num_copies: int
    num_reads: int
    load_s: float

    @classmethod
    def joined(cls, parts: Sequence["LoraRecords"]) -> "LoraRecords | None":
        """Of several engines; None where none has adapters."""
        if not parts:
            return None
        return cls(sum(p.num_copies for p in parts), sum(p.num_reads for p in parts), sum(p.load_s for p in parts))


@dataclass(frozen=True)
class EngineRecords:
    """What a replica leaves: its leaps, its inter-token gaps and cache totals.

    `stage_busy_s` is how long each pipeline stage has run, over all replicas; None without stages, or of different numbers of them.
    """

    leaps: LeapRecords
    gaps: GapColumn
    prefix_cache_queries: int  # tokens, as vLLM counts them
    prefix_cache_hits: int
    num_evictions: int
    offload: OffloadRecords | None
    lora: LoraRecords | None
    stage_busy_s: tuple[float, ...] | None

    @cached_property
    def steps(self) -> StepRecords:
        """Every step by itself, expanded from the leaps when first asked for."""
        return self.leaps.steps()


@dataclass(frozen=True)
class Records(EngineRecords):
    """What a run leaves: that of all replicas one after the other, and the requests."""

    requests: RequestRecords
