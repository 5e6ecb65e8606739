"""Traces by keyword, with small defaults."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.workload.readers import read_trace
from sim.workload.trace import Segment, Trace


def make_trace(
    arrival_s: Sequence[float] = (0.0, 1.0, 3.0),
    *,
    prompt_tokens: Sequence[int] | None = None,
    output_tokens: Sequence[int] | None = None,
    segments: Sequence[tuple[Segment, ...]] | None = None,
    **columns: Any,
) -> Trace:
    count = len(arrival_s)
    if prompt_tokens is None:
        prompt_tokens = [sum(n for _, n in prompt) for prompt in segments] if segments else [16] * count
    return Trace(
        request_id=columns.pop("request_id", tuple(f"r{index}" for index in range(count))),
        arrival_s=np.array(arrival_s, dtype=np.float64),
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        output_tokens=np.array([4] * count if output_tokens is None else output_tokens, dtype=np.int64),
        segments=segments,
        **columns,
    )


def piped(file: Path, limit: int | None = None) -> Trace:
    """The trace in a file that comes on standard input."""
    before = os.dup(0)
    with file.open("rb") as source:
        os.dup2(source.fileno(), 0)
    try:
        return read_trace("-", limit=limit)
    finally:
        os.dup2(before, 0)
        os.close(before)
