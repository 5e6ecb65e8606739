"""A trace: what arrives when, in columns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Segment = tuple[int, int]
"""`(content id, number of tokens)`: token k of a segment is the pair (content id, k); equal pairs are equal tokens."""


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival; all columns have one entry a request.

    `arrival_s` starts anywhere and never falls; prompts and outputs are at least one token. `segments` says what each
    prompt is made of, so that equal prefixes can be found; None where nothing is known to be shared.
    Content ids of at least 0 belong to the trace; the engine gives private prompts and outputs negative ones.
    """

    request_id: tuple[str, ...]
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    priority: NDArray[np.int64] | None = None
    session_id: tuple[str, ...] | None = None
    segments: Sequence[tuple[Segment, ...]] | None = None
    source: str = ""
    format: str = "native"

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    def first(self, num_requests: int) -> "Trace":
        """The first requests only."""
        kept = slice(num_requests)
        return replace(
            self,
            request_id=self.request_id[kept],
            arrival_s=self.arrival_s[kept],
            prompt_tokens=self.prompt_tokens[kept],
            output_tokens=self.output_tokens[kept],
            priority=None if self.priority is None else self.priority[kept],
            session_id=None if self.session_id is None else self.session_id[kept],
            segments=None if self.segments is None else self.segments[kept],
        )
