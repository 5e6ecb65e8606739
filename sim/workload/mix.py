"""Requests of several traces together, in order of arrival."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.workload.names import PackedNames
from sim.workload.trace import COLUMNS, Segment, Trace


def merged(traces: Sequence[Trace]) -> Trace:
    """All requests, whose names must differ. Where one trace has a column and another has not, the latter's requests have
    what is nothing there: priority 0, the base model, sessions and prompts of their own. Classes are those of all.
    """
    order = np.argsort(np.concatenate([trace.arrival_s for trace in traces]), kind="stable")
    columns = {name: _column(name, traces, order) for name in COLUMNS}
    return Trace(**columns, slo_classes=traces[0].slo_classes, source=traces[0].source)


def _column(name: str, traces: Sequence[Trace], order: Any) -> Any:
    found = [getattr(trace, name) for trace in traces]
    if all(column is None for column in found):
        return None
    if name == "segments":
        found = _apart(traces)
    parts = [_NOTHING[name](trace) if part is None else part for trace, part in zip(traces, found, strict=True)]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)[order]
    joined = [value for part in parts for value in part]
    ordered = (joined[row] for row in order.tolist())
    return list(ordered) if name == "segments" else PackedNames.of(ordered)


def _apart(traces: Sequence[Trace]) -> list[list[tuple[Segment, ...]]]:
    """What prompts are made of, as if no two traces had contents in common."""
    parts, begin = [], 0
    for trace in traces:
        paths = trace.segments or [((row, tokens),) for row, tokens in enumerate(trace.prompt_tokens.tolist())]
        parts.append([tuple((begin + content, tokens) for content, tokens in path) for path in paths])
        begin = 1 + max(content for path in parts[-1] for content, _ in path)
    return parts


_NOTHING: dict[str, Callable[[Trace], Any]] = {
    "n": lambda trace: np.ones(len(trace), dtype=np.int64),
    "priority": lambda trace: np.zeros(len(trace), dtype=np.int64),
    "lora_name": lambda trace: [""] * len(trace),
    "session_id": lambda trace: trace.request_id,
    "think_time_s": lambda trace: np.zeros(len(trace)),
}
