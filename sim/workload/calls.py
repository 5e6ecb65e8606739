"""Requests read one by one, from files whose rows are unlike each other, and made columns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.workload.columns import MAX_SECONDS, MAX_TOKENS, integer_value, number_value, show
from sim.workload.prefixes import TokenPrefixes
from sim.workload.table import Sheet
from sim.workload.trace_builder import Part


class Call(NamedTuple):
    """A request; `tokens` are those of its prompt where they are known."""

    place: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    n: int = 1
    request_id: str | None = None
    session_id: str | None = None
    think_time_s: float = 0.0
    lora_name: str = ""
    stage: int | None = None
    tokens: Sequence[int] | None = None


def part_of(calls: Sequence[Call]) -> list[Part]:
    """All of them as one part, with the columns that some have; none where there are no calls."""
    if not calls:
        return []
    has_sessions = any(call.session_id is not None for call in calls)
    stages = [call.stage for call in calls]
    prefixes = TokenPrefixes()
    return [
        Part(
            places=np.array([call.place for call in calls]),
            arrival_s=np.array([call.arrival_s for call in calls], dtype=np.float64),
            prompt_tokens=np.array([call.prompt_tokens for call in calls], dtype=np.int64),
            output_tokens=np.array([call.output_tokens for call in calls], dtype=np.int64),
            n=np.array([call.n for call in calls], dtype=np.int64) if any(call.n > 1 for call in calls) else None,
            request_id=_all_of([call.request_id for call in calls]),
            session_id=[_session(call, row) for row, call in enumerate(calls)] if has_sessions else None,
            think_time_s=np.array([call.think_time_s for call in calls]) if has_sessions else None,
            lora_name=[call.lora_name for call in calls] if any(call.lora_name for call in calls) else None,
            stage=None if None in stages else np.array(stages, dtype=np.int64),
            segments=[prefixes.of(call.tokens, call.prompt_tokens) for call in calls]
            if any(call.tokens is not None for call in calls)
            else None,
        )
    ]


def _all_of(names: list[str | None]) -> list[str] | None:
    found = [name for name in names if name is not None]
    return found if len(found) == len(names) else None


def _session(call: Call, row: int) -> str:
    """A request that belongs to none has one of its own."""
    return f"alone {row}" if call.session_id is None else call.session_id


def tokens_of(sheet: Sheet, place: int, name: str, cell: Any, least: int = 1) -> int:
    """A length in tokens. Raises TraceError, naming place and key."""
    value = integer_value(cell, least, MAX_TOKENS)
    if value is None:
        raise _fault(sheet, place, name, f"an integer from {least} to {MAX_TOKENS:,}", cell)
    return value


def seconds_of(sheet: Sheet, place: int, name: str, cell: Any, per_s: float = 1.0) -> float:
    """A time in seconds, from so many units each. Raises TraceError, naming place and key."""
    value = number_value(cell, MAX_SECONDS * per_s)
    if value is None:
        raise _fault(sheet, place, name, f"a finite number from 0 to {MAX_SECONDS * per_s:.0e}", cell)
    return value / per_s


def object_of(sheet: Sheet, place: int, name: str, value: Any) -> dict[str, Any]:
    """An object, empty where there is none. Raises TraceError, naming place and key."""
    if value is not None and not isinstance(value, dict):
        raise _fault(sheet, place, name, "an object", value)
    return value or {}


def objects_of(sheet: Sheet, place: int, name: str, value: Any) -> list[dict[str, Any]]:
    """A list of objects. Raises TraceError, naming place and key."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _fault(sheet, place, name, "a list of objects", value)
    return value


def _fault(sheet: Sheet, place: int, name: str, rule: str, got: Any) -> Exception:
    return sheet.fault(place, f"`{name}` must be {rule}, got {show(got)}; correct the row or remove it.")
