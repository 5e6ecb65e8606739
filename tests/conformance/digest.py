"""Recordings carry digests of their full logs, also where they keep only part of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from tests.conformance.case import Case

Row = Mapping[str, Any]
STEP_FIELDS = ("t", "start", "end", "free", "sched", "preempted", "finished", "running", "waiting")


def digest_difference(case: Case, steps: Sequence[Row], events: Sequence[Sequence[Any]] = ()) -> str | None:
    """Which digest is another than the recorded one, or None; for recordings of further modes, whose form has both."""
    if "ext" not in case.recorded:
        return None
    recorded = case.recorded["result"]
    found = {
        "digest": _digest([row[field] for field in STEP_FIELDS] for row in steps),
        "digest_x": _digest([*(_extended(row, case) for row in steps), *events]),
    }
    for name, digest in found.items():
        if digest != recorded[name]:
            return f"{name} of {len(steps)} steps is {digest[:8]}, recorded {recorded[name][:8]}"
    return None


def _extended(row: Row, case: Case) -> list[Any]:
    """What the plain engine leaves out of its rows is nothing."""
    is_pipelined = case.modes.pipeline.num_stages > 1
    return [
        row["t"],
        sorted(row.get("drafts", {}).items()),
        sorted(row.get("padded", ())),
        sorted(row.get("accepted", {}).items()),
        sorted(row.get("delivered", {}).items()),
        row["stages"] if is_pipelined else [],
        row["inflight"] if is_pipelined else [],
        row.get("kv_holding_waiting", []),
        row["free_after"],
    ]


def _digest(lines: Iterable[Any]) -> str:
    found = sha256()
    for line in lines:
        found.update(json.dumps(_whole(line), separators=(",", ":")).encode() + b"\n")
    return found.hexdigest()


def _whole(value: Any) -> Any:
    """Times are whole nanoseconds."""
    if isinstance(value, float):
        return int(value)
    return [_whole(item) for item in value] if isinstance(value, (list, tuple)) else value
