"""An engine's steps set beside the recorded ones; the first difference is told."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.conformance.case import Case

Row = Mapping[str, Any]
Engine = Callable[[Case], Sequence[Row]]

ALWAYS = (
    "t",
    "start",
    "end",
    "n",
    "ctx",
    "free",
    "free_after",
    "running",
    "waiting",
    "sampled",
    "sched",
    "k_next",
    "stages",
    "inflight",
)
"""What stands in every step of the recordings that have it."""

SPARSE = {
    "arrived": [],
    "new": [],
    "resumed": [],
    "preempted": [],
    "hits": {},
    "evicted": 0,
    "finished": [],
    "ghosts": [],
    "kv_holding_waiting": [],
    "drafts": {},
    "padded": [],
    "accepted": {},
    "delivered": {},
    "ext": {},
    "throttle": 0,
}
"""What the recorder leaves out of a step when it is empty."""


def first_difference(case: Case, steps: Sequence[Row]) -> str | None:
    """Where the steps part from the recorded ones, or None."""
    recorded = case.recorded["steps"]
    groups = len(case.config.kv_groups) > 1 or "kv_groups" in case.recorded["config"]
    for index, (expected, got) in enumerate(zip(recorded, steps, strict=False)):
        if {**SPARSE, **expected}.items() <= {
            **SPARSE,
            **got,
        }.items():  # at a fraction of the cost of telling fields apart
            continue
        for field, said, did in _comparable(expected, got, with_groups=groups):
            if said != did:
                return f"step {index}: {field} is {did!r}, recorded {said!r}"
    if len(recorded) != len(steps):
        return f"{len(steps)} steps, recorded {len(recorded)}"
    return None


def _comparable(expected: Row, got: Row, *, with_groups: bool) -> Iterator[tuple[str, Any, Any]]:
    """Each field that the case records, with what is recorded and what was got, in the recorded form."""
    got = _without_groups(got) if with_groups else got
    expected = _without_groups(expected) if with_groups else expected
    for field in ALWAYS:
        if field in expected:
            yield field, expected[field], got[field]
    for field, empty in SPARSE.items():
        yield field, expected.get(field, empty), got.get(field, empty)
    yield from _slimmed(expected, got)


def _slimmed(expected: Row, got: Row) -> Iterator[tuple[str, Any, Any]]:
    """Fields that slim recordings hold instead of the full lists."""
    if "n_running" in expected:
        counts = (len(got["running"]), len(got["waiting"]))
        yield "n_running, n_waiting", (expected["n_running"], expected["n_waiting"]), counts
    if "n_sched" in expected:
        yield "n_sched", expected["n_sched"], len(got["sched"])
        partial = [row for row in got["sched"] if row[1] != 1 or row[3] != 0]
        yield "sched_partial", expected["sched_partial"], partial


def _without_groups(row: Row) -> Row:
    """Recordings with KV groups give new blocks by group; their sum is compared."""
    sched = [[*cells[:3], sum(cells[3]) if isinstance(cells[3], list) else cells[3]] for cells in row["sched"]]
    return {**row, "sched": sched}


def request_difference(case: Case, requests: Mapping[str, Row]) -> str | None:
    """Where a request's life parts from the recorded one, or None."""
    for request_id, expected in case.recorded["per_request"].items():
        for field, got in requests[request_id].items():
            if field in expected and expected[field] != got:
                return f"request {request_id}: {field} is {got!r}, recorded {expected[field]!r}"
    return None


def transfer_difference(case: Case, events: Sequence[Sequence[Any]]) -> str | None:
    """Where transfers part from the recorded ones, or None."""
    recorded = case.recorded.get("kv_events", [])
    for number, (expected, got) in enumerate(zip(recorded, events, strict=False)):
        if expected != list(got):
            return f"transfer {number} is {got!r}, recorded {expected!r}"
    return None if len(recorded) == len(events) else f"{len(events)} transfers, recorded {len(recorded)}"
