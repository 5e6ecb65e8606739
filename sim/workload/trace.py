"""A trace: arrival times and sizes of requests, in columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import TraceError
from sim.specs.slo import SloClass
from sim.workload.names import Names, PackedNames

Segment = tuple[int, int]
"""`(content id, number of tokens)`: token k of a segment is the pair (content id, k); equal pairs are equal tokens."""

COLUMNS = (
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "n", "priority", "lora_name", "session_id", "think_time_s", "hold_s", "stage",
    "line", "max_concurrency", "acceptance_length", "slo_class",
    "segments",
)  # fmt: skip

LEAST = {
    "n": 1,
    "think_time_s": 0,
    "hold_s": 0,
    "stage": 0,
    "line": 0,
    "max_concurrency": 1,
    "acceptance_length": 1,
    "slo_class": 0,
}


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival; all columns have one entry a request.

    `arrival_s` starts anywhere, is finite and never falls. Prompts and outputs read from a file are at least one token, as
    vLLM's server demands; its bare scheduler, and so this type, takes 0. `segments` says what each prompt is made of, so
    that equal prefixes can be found; None where `session_id` alone says what is shared, or nothing does. Content ids of at least 0 belong to the
    trace; the engine gives private prompts and outputs negative ones. `lora_name` is empty for requests of the base model;
    equal tokens under different adapters have different KV. `n` answers are generated for a prompt, each of `output_tokens`, one where it
    is None. `think_time_s` passes between the answer before a turn and that turn; a stage of requests begins when the one before it has ended.
    Of the requests of one `stage` and `line` at most `max_concurrency` are in flight, first come, first served; `hold_s` after its answer a request still is. `acceptance_length` is what a verification of its drafts
    yields in the mean, where it is served with any. `slo_class` is whose limits a request is held to, a number in `slo_classes`. `notes` are sentences on what the file
    left open and what was taken for it, `read_with` the options of `read_trace` that were given. Raises TraceError for columns that break this.
    """

    request_id: Sequence[str]
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    n: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    lora_name: Sequence[str] | None = None
    session_id: Sequence[str] | None = None
    think_time_s: NDArray[np.float64] | None = None
    hold_s: NDArray[np.float64] | None = None
    stage: NDArray[np.int64] | None = None
    line: NDArray[np.int64] | None = None
    max_concurrency: NDArray[np.int64] | None = None
    acceptance_length: NDArray[np.float64] | None = None
    slo_class: NDArray[np.int64] | None = None
    segments: Sequence[tuple[Segment, ...]] | None = None
    slo_classes: tuple[SloClass, ...] = ()
    source: str = ""
    format: str = "native"
    notes: tuple[str, ...] = ()
    read_with: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = {len(column) for column in self._columns().values()}
        if len(counts) > 1:
            raise TraceError(f"all columns of a trace must be equally long, got lengths {sorted(counts)}.")
        if not len(self):
            raise TraceError("a trace must have at least one request, got none.")
        if not (np.isfinite(self.arrival_s).all() and (np.diff(self.arrival_s) >= 0).all()):
            raise TraceError("`arrival_s` of a trace must be finite and must not fall from one request to the next.")
        if min(self.prompt_tokens.min(), self.output_tokens.min()) < 0:
            raise TraceError("`prompt_tokens` and `output_tokens` of a trace must not be negative in any request.")
        for name, least in LEAST.items():
            column = getattr(self, name)
            if column is not None and not (np.isfinite(column) & (column >= least)).all():
                rule = f"finite and at least {least}" if column.dtype.kind == "f" else f"at least {least}"
                raise TraceError(f"`{name}` of a trace must be {rule} in each request.")
        if self.stage is not None and (np.diff(self.stage) < 0).any():
            raise TraceError("`stage` of a trace must not fall from one request to the next.")
        if self.max_concurrency is not None and unlike_limits(self.lines, self.max_concurrency):
            raise TraceError("`max_concurrency` of a trace must be one in all requests of a stage and line.")
        if self.slo_class is not None and self.slo_class.max() >= len(self.slo_classes):
            raise TraceError("`slo_class` of a trace must be a number in `slo_classes` in each request.")
        self._check_sessions()

    def _check_sessions(self) -> None:
        if self.session_id is None:
            return
        if self.lora_name is not None:
            _check_one("lora_name", self.session_id, self.lora_name, "adapter")
        if self.line is not None:
            _check_one("line", self.session_id, self.line.tolist(), "line")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def client(self) -> Sequence[str] | None:
        """Who sends each request, as far as is told: whose adapter it asks for, or else whose session it is of."""
        return self.session_id if self.lora_name is None else self.lora_name

    @property
    def says_contents(self) -> bool:
        """Whether the contents of prompts are known: by hash ids, or by sessions whose turns repeat the conversation."""
        return self.segments is not None or self.session_id is not None

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def request_rate(self) -> float | None:
        """Requests a second between the first and the last arrival; None where all come at once."""
        return (len(self) - 1) / self.duration_s if self.duration_s else None

    @property
    def lines(self) -> NDArray[np.int64]:
        """The number of each request's line: requests of one `stage` and `line` wait behind each other."""
        return line_numbers(len(self), self.stage, self.line)

    @property
    def more_answers(self) -> NDArray[np.int64]:
        """The row of the request for each answer beyond a request's first, row by row."""
        if self.n is None:
            return np.zeros(0, dtype=np.int64)
        return np.repeat(np.arange(len(self)), self.n - 1)

    def first(self, num_requests: int) -> "Trace":
        """The first requests only."""
        return self.part(0, num_requests)

    def part(self, first: int, end: int) -> "Trace":
        """Requests in a row."""
        return replace(self, **{name: column[first:end] for name, column in self._columns().items()})

    def rows(self, rows: NDArray[np.int64], **changes: Any) -> "Trace":
        """Some requests in order of arrival, and what else changes."""
        columns = {name: picked(column, rows) for name, column in self._columns().items()}
        return replace(self, **columns | changes)

    def _columns(self) -> dict[str, Any]:
        """The columns that are there, by name."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return {name: column for name, column in columns.items() if column is not None}


def line_numbers(count: int, stage: NDArray[np.int64] | None, line: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Lines from 0 on, one a stage and line."""
    columns = [column for column in (stage, line) if column is not None]
    if not columns:
        return np.zeros(count, dtype=np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def unlike_limits(lines: NDArray[np.int64], limits: NDArray[np.int64]) -> tuple[int, int] | None:
    """The first row whose limit is not that of its line, and the line's first row; None if there is none."""
    firsts = np.unique(lines, return_index=True)[1][lines]
    unlike = np.flatnonzero(limits != limits[firsts])
    return (int(unlike[0]), int(firsts[unlike[0]])) if len(unlike) else None


def _check_one(column: str, session_id: Sequence[str], values: Iterable[str | int], what: str) -> None:
    """Raises TraceError where a session's turns have several."""
    found: dict[str, str | int] = {}
    for session, value in zip(session_id, values, strict=True):
        if found.setdefault(session, value) != value:
            raise TraceError(
                f"`{column}` of a trace must be one in all turns of a session, got {found[session]!r} and {value!r} in"
                f" {session!r}; give the turns with another {what} a session of their own."
            )


def picked(column: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a column, names as text again."""
    if isinstance(column, np.ndarray):
        return column[rows]
    found = (column[row] for row in rows.tolist())
    return PackedNames.of(found) if isinstance(column, Names) else tuple(found)
