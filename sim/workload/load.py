"""The load made of a trace: its fingerprint, and the rate and length asked for."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sim.workload.rates import rate_json
from sim.workload.readers import TraceLike, as_trace
from sim.workload.trace import COLUMNS, Trace
from sim.workload.trace_builder import NAMES

flattened = chain.from_iterable
HASHED = [name for name in COLUMNS if name not in {"request_id", "slo_class", "segments"}]
FLOATS = ("arrival_s", "think_time_s", "hold_s", "acceptance_length")


class Load(NamedTuple):
    """A trace as it is replayed, and what was asked for to make it so."""

    trace: Trace
    request_rate: float | None = None
    rate_scale: float = 1.0
    limit: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The keys under which summaries say which load was replayed."""
        return {
            "trace": self.trace.source,
            "trace_sha256": trace_sha256(self.trace),
            "trace_request_rate": self.trace.request_rate,
            "request_rate": rate_json(self.request_rate),
            "rate_scale": self.rate_scale,
            "limit": self.limit,
        }


def as_load(
    trace: TraceLike, *, request_rate: float | None, rate_scale: float, limit: int | None, seed: int = 0
) -> Load:
    """Raises TraceError and ConfigError as `as_trace` does."""
    replayed = as_trace(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit, seed=seed)
    return Load(replayed, request_rate, rate_scale, limit)


def trace_sha256(trace: Trace) -> str:
    """SHA-256 over the columns that a replay reads, in hexadecimal.

    These are arrival times as replayed (after any scaling or limit), lengths, numbers of answers, priorities, adapters, sessions, think times, stages, lines, how
    drafts fare, and what prompts share;
    the requests' own names, the file and its format are left out.
    """
    digest = hashlib.sha256()
    for name, column in _columns(trace):
        digest.update(f"{name} {column.nbytes}\n".encode())
        digest.update(column)
    return digest.hexdigest()


class StreamSha256:
    """A fingerprint of a trace that comes in parts, column by column: another one than that of the same trace as a whole, whose columns
    follow each other, but the same for parts of any size.
    """

    def __init__(self) -> None:
        self._digests: dict[str, Any] = {}

    def add(self, trace: Trace) -> None:
        """The next requests."""
        for name, column in _columns(trace, with_single_answers=True):
            self._digests.setdefault(name, hashlib.sha256()).update(column)

    def hexdigest(self) -> str:
        """Of all so far."""
        columns = "".join(f"{name} {digest.hexdigest()}\n" for name, digest in self._digests.items())
        return hashlib.sha256(columns.encode()).hexdigest()


def _columns(trace: Trace, *, with_single_answers: bool = False) -> Iterator[tuple[str, memoryview]]:
    """By name. An `n` of one answer for all is as none, but in a part, as others may have more."""
    for name in HASHED:
        column = getattr(trace, name)
        if column is None or (name == "n" and not (len(trace.more_answers) or with_single_answers)):
            continue
        if name in NAMES:
            yield name, _names(column)
        else:
            yield name, _packed(column + 0.0, "<f8") if name in FLOATS else _packed(column, "<i8")  # -0.0 is 0.0
    if trace.segments is not None:
        yield "segments", _packed(np.fromiter(map(len, trace.segments), dtype=np.int64), "<i8")
        yield "contents", _packed(np.fromiter(flattened(flattened(trace.segments)), dtype=np.int64), "<i8")


def _names(column: Iterable[str]) -> memoryview:
    return memoryview(b"".join(name.encode("utf-8", "surrogatepass") + b"\0" for name in column))


def _packed(column: ArrayLike, dtype: str) -> memoryview:
    """The bytes of a column, those in memory where they are in that order already."""
    return np.ascontiguousarray(column, dtype=dtype).data
