"""A trace: arrival times and sizes of requests, in columns."""

from collections.abc import Mapping, Sequence
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
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "n", "priority", "lora_name", "session_id", "think_time_s", "stage",
    "acceptance_length", "slo_class",
    "segments",
)  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival; all columns have one entry a request.

    `arrival_s` starts anywhere, is finite and never falls. Prompts and outputs read from a file are at least one token, as
    vLLM's server demands; its bare scheduler, and so this type, takes 0. `segments` says what each prompt is made of, so
    that equal prefixes can be found; None where `session_id` alone says what is shared, or nothing does. Content ids of at least 0 belong to the
    trace; the engine gives private prompts and outputs negative ones. `lora_name` is empty for requests of the base model;
    equal tokens under different adapters have different KV. `n` answers are generated for a prompt, each of `output_tokens`, one where it
    is None. `think_time_s` passes between the answer before a turn and that turn; a stage of requests begins when the one before it has ended. `acceptance_length` is what a verification of its drafts
    yields in the mean, where it is served with any. `slo_class` is whose limits a request is held to, a number in `slo_classes`;
    no file has a column for it. `notes` are sentences on what the file
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
    stage: NDArray[np.int64] | None = None
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
        if self.n is not None and self.n.min() < 1:
            raise TraceError("`n` of a trace must be at least 1 in each request.")
        if self.think_time_s is not None and not (np.isfinite(self.think_time_s) & (self.think_time_s >= 0)).all():
            raise TraceError("`think_time_s` of a trace must be finite and at least 0 in each request.")
        if self.lora_name is not None and self.session_id is not None:
            _check_one_adapter(self.session_id, self.lora_name)
        if (
            self.acceptance_length is not None
            and not (np.isfinite(self.acceptance_length) & (self.acceptance_length >= 1)).all()
        ):
            raise TraceError("`acceptance_length` of a trace must be finite and at least 1 in each request.")
        if self.stage is not None and (self.stage[0] < 0 or (np.diff(self.stage) < 0).any()):
            raise TraceError("`stage` of a trace must be at least 0 and must not fall from one request to the next.")

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


def _check_one_adapter(session_id: Sequence[str], lora_name: Sequence[str]) -> None:
    adapters: dict[str, str] = {}
    for session, name in zip(session_id, lora_name, strict=True):
        if adapters.setdefault(session, name) != name:
            raise TraceError(
                f"`lora_name` of a trace must be one in all turns of a session, got {adapters[session]!r} and {name!r} in"
                f" {session!r}; give the turns with another adapter a session of their own."
            )


def picked(column: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of a column, names as text again."""
    if isinstance(column, np.ndarray):
        return column[rows]
    found = (column[row] for row in rows.tolist())
    return PackedNames.of(found) if isinstance(column, Names) else tuple(found)
