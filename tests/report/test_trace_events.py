"""A run as Perfetto reads it: the rules of the Trace Event Format, and what was simulated."""

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.report import trace_events
from sim.report.trace_events import FIRST_REPLICA, REQUESTS, write_trace_events
from tests import results

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "C": {"name", "pid", "ts", "args"},
}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
US_PER_S = 1_000_000
Events = list[dict[str, Any]]


def written(result: sim.Result, path: Path) -> dict[str, Any]:
    write_trace_events(path, result.fleet, result.run, result.trace, result._over_time)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def tracks(events: Events) -> dict[tuple[int, int], Events]:
    """The slices of each track, in order."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


@pytest.mark.parametrize("result", [results.crowded, results.fleet])
def test_events_keep_the_rules_of_the_format(result: Callable[[], sim.Result], tmp_path: Path) -> None:
    """Known phases with their fields, times in us, every process and track with a name, and no two slices of a track at once."""
    found = written(result(), tmp_path / "timeline.json")
    events = found["traceEvents"]
    assert found["displayTimeUnit"] in {"ms", "ns"}
    for event in events:
        assert REQUIRED[event["ph"]] <= set(event)
        assert all(event.get(name, 0.0) >= 0 for name in ("ts", "dur"))
        if event["ph"] == "M":
            assert list(event["args"]) == [METADATA[event["name"]]]
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
    named = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    for (process, track), slices in tracks(events).items():
        assert ("process_name", process, 0) in named
        assert ("thread_name", process, track) in named
        assert all(one["ts"] + one["dur"] <= after["ts"] + 1e-3 for one, after in pairwise(slices))


def test_each_step_and_each_request_is_there(tmp_path: Path) -> None:
    """Steps as in steps.csv, the phases of a request from its arrival to its end."""
    run = results.crowded()
    by_track = tracks(written(run, tmp_path / "timeline.json")["traceEvents"])
    steps = by_track[FIRST_REPLICA, 1]
    assert [one["args"]["cudagraph"] for one in steps] == run.steps["cudagraph"].tolist()
    assert sum(one["dur"] for one in steps) / US_PER_S == pytest.approx(
        (run.steps["end_s"] - run.steps["start_s"]).sum()
    )
    assert {one["name"] for one in steps} == {"prefill", "mixed", "decode"}
    for number, e2el_ms in enumerate(run.requests["e2el_ms"], 1):
        assert sum(one["dur"] for one in by_track[REQUESTS, number]) / 1000 == pytest.approx(e2el_ms, abs=1e-3)


def test_preemptions_are_where_the_step_log_has_them(tmp_path: Path) -> None:
    """From the last token before to the first since, of each request."""
    run = results.crowded()
    by_track = tracks(written(run, tmp_path / "timeline.json")["traceEvents"])
    logged = preempted_us()
    for number, name in enumerate(run.trace.request_id, 1):
        found = [(one["ts"], one["dur"]) for one in by_track[REQUESTS, number] if one["name"] == "preempted"]
        assert found == [pytest.approx((begin, end - begin), abs=1e-2) for begin, end in logged[name]]
    assert sum(map(len, logged.values())) > 40


def preempted_us() -> dict[str, list[tuple[float, float]]]:
    """By the log of all steps."""
    found, last, stopped = defaultdict(list), dict[str, float](), dict[str, float]()
    for step in results.STEPS:
        stopped |= {name: last[name] for name in step["preempted"] if name in last}
        for name in step["sampled"]:
            last[name] = step["end"] * US_PER_S
            if name in stopped:
                found[name].append((stopped.pop(name), last[name]))
    return found


def test_a_long_run_is_told_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says by which rule and how much of the whole; the slowest to begin and the steps around its first token are in it."""
    monkeypatch.setattr(trace_events, "MOST_STEPS", 100)
    monkeypatch.setattr(trace_events, "MOST_REQUESTS", 10)
    run = results.crowded()
    found = written(run, tmp_path / "timeline.json")
    by_track = tracks(found["traceEvents"])
    slowest = run.requests.to_dict("records")[int(run.requests["ttft_ms"].argmax())]
    names = {event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert found["otherData"]["steps"] == f"100 of {len(run.steps):,}"
    assert len(by_track) - 1 <= 10
    assert slowest["request_id"] in names
    assert any(
        one["ts"] <= slowest["first_token_s"] * US_PER_S <= one["ts"] + one["dur"] + 1e-3
        for one in by_track[FIRST_REPLICA, 1]
    )
