"""Limits of classes: each request by its own class's, in the figures of the whole and of each class."""

from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.engine.records import RequestRecords
from sim.errors import ConfigError, SimError
from sim.metrics.slo_classes import limit_figures
from sim.specs.slo import SloClass, parse_slo
from sim.workload.anonymise import anonymise
from sim.workload.load import trace_sha256
from sim.workload.merge import merge
from sim.workload.slice import slice_trace
from sim.workload.tile import tile
from sim.workload.trace import Trace
from sim.workload.writers import native_columns, write_trace
from tests.metrics.makers import Life, make_records

CLASSES = (SloClass("fast", (parse_slo("ttft_p50=2s"),)), SloClass("rest", ()), SloClass("none", ()))
TEXT = """
num_requests: 40
request_rate: 14
clients:
  - {name: chat, share: 3, slo: [ttft_p99=100ms, tpot_p99=25ms]}
  - {name: free-chat, share: 1, slo: e2el_p99=8s}
  - {name: batch, share: 1}
"""


def figures(*slos: str) -> dict[str, Any]:
    """Fast: 1 s, 3 s and never; the rest: 3 s and 6 s; nobody of the third."""
    records = make_records(Life(0, 1, 4), Life(0, 3, 4), Life(1, 4, 9), Life(1, rejected="too long"), Life(2, 8, 10))
    return limit_figures(trace_of(records.requests), [parse_slo(slo) for slo in slos], records, 10.0)


def trace_of(lives: RequestRecords) -> Trace:
    return Trace(
        request_id=tuple("abcde"),
        arrival_s=lives.arrival_s,
        prompt_tokens=lives.prompt_tokens,
        output_tokens=lives.output_tokens,
        slo_class=np.array([0, 0, 1, 0, 1]),
        slo_classes=CLASSES,
    )


def test_each_request_is_held_to_the_limits_of_its_class() -> None:
    """One of fast is good; of the rest one within the run's 4 s. The median of fast is 3 s, one of three being infinitely late."""
    found = figures("ttft_p100=4s")
    assert found["slo_attainment"] == 2 / 5
    assert found["request_goodput"] == 0.2
    fast, rest, none = found["slo_classes"]
    assert fast == {
        "class": "fast", "slo": {"ttft_p50": 2000.0}, "arrived": 3, "completed": 2, "slo_ttft_p50_ms": 3000.0,
        "request_goodput": 0.1, "slo_attainment": 1 / 3,
    }  # fmt: skip
    assert (rest["slo"], rest["slo_ttft_p100_ms"], rest["slo_attainment"]) == ({"ttft_p100": 4000.0}, 6000.0, 1 / 2)
    assert (none["arrived"], none["slo_ttft_p100_ms"], none["slo_attainment"]) == (0, None, None)


def test_a_class_without_any_limit_keeps_it_by_being_served() -> None:
    found = figures()
    assert found["slo_attainment"] == 3 / 5
    assert found["slo_classes"][1]["slo_attainment"] == 1.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("classes") / "classes.yaml"
    path.write_text(TEXT)
    return path


def test_a_workload_is_told_class_by_class(path: Path) -> None:
    """By the requests' own latencies; in the summary, as text and as a page."""
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", path, slo=["ttft_p90=2s"], intervals=False)
    requests = found.requests
    name = requests["request_id"].str.rpartition("-")[0]
    limits = {
        "chat": (requests["ttft_ms"] <= 100) & ~(requests["tpot_ms"] > 25),
        "free-chat": requests["e2el_ms"] <= 8000,
        "batch": requests["ttft_ms"] <= 2000,
    }
    good = {one: int((limits[one] & (name == one)).sum()) for one in limits}
    parts = {part["class"]: part for part in found.summary["slo_classes"]}
    assert {one: round(part["slo_attainment"] * part["arrived"]) for one, part in parts.items()} == good
    assert round(found.summary["slo_attainment"] * 40) == sum(good.values())
    assert {one: part["arrived"] for one, part in parts.items()} == name.value_counts().to_dict()
    assert "slo" not in found.summary
    assert "chat: tpot_p99, limit 25 (ms):" in str(found)
    again = found.trace.part(0, 20)
    assert again.slo_class is not None
    assert len(again.slo_class) == 20


def test_a_workload_without_limits_is_as_it_was(path: Path) -> None:
    assert sim.read_trace("chat").slo_class is None
    plain = path.with_name("plain.yaml")
    plain.write_text("\n".join(line.split(", slo")[0] + "}" * (", slo" in line) for line in TEXT.splitlines()))
    with_limits, without = sim.read_trace(path), sim.read_trace(plain)
    assert trace_sha256(with_limits) == trace_sha256(without)
    assert without.slo_class is None


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_trace_that_was_written_keeps_them(path: Path, suffix: str) -> None:
    """Replayed it has the same figures, to the last digit; classes stand in the order in which they come."""
    written = path.with_name(f"written.{suffix}")
    write_trace(sim.read_trace(path), written)
    spec, file = (
        sim.simulate("Llama-3.1-8B", "h100-sxm", trace, slo=["ttft_p90=2s"], intervals=False).summary
        for trace in (path, written)
    )
    by_name = itemgetter("class")
    assert sorted(file["slo_classes"], key=by_name) == sorted(spec["slo_classes"], key=by_name)
    for figure in ("request_goodput", "slo_attainment"):
        assert file[figure] == spec[figure]


def test_limits_are_written_row_by_row() -> None:
    """A class that has none has an empty cell."""
    columns = native_columns(trace_of(make_records(*[Life(0, 1, 4)] * 5).requests))
    assert columns["slo_class"] == ["fast", "fast", "rest", "fast", "rest"]
    assert columns["slo"] == ["ttft_p50=2000ms", "ttft_p50=2000ms", "", "ttft_p50=2000ms", ""]


def class_of_each(trace: Trace) -> dict[str, SloClass]:
    assert trace.slo_class is not None
    numbers = trace.slo_class.tolist()
    return {name: trace.slo_classes[number] for name, number in zip(trace.request_id, numbers, strict=True)}


def test_what_is_made_of_a_trace_keeps_them(path: Path) -> None:
    """Slices and copies; other names have other classes with the same limits."""
    trace = sim.read_trace(path)
    of_each = class_of_each(trace)
    assert class_of_each(slice_trace(trace, from_s=1.0)).items() < of_each.items()
    assert class_of_each(tile(trace, 2)) == {f"{name}-{copy}": of for name, of in of_each.items() for copy in (0, 1)}
    unnamed = class_of_each(anonymise(trace))
    assert [of.slos for of in unnamed.values()] == [of.slos for of in of_each.values()]
    assert {of.name for of in unnamed.values()} == {"class-0", "class-1", "class-2"}


def test_a_class_of_one_name_is_one_when_traces_are_merged(path: Path) -> None:
    """Requests of a trace without any are a class without limits; a class has its limits once."""
    trace, plain = sim.read_trace(path), sim.read_trace("chat", limit=3)
    merged = merge([trace, plain, trace.rows(np.arange(5))])
    assert merged.slo_classes == (*trace.slo_classes, SloClass("none", ()))
    of_each, found = class_of_each(trace), class_of_each(merged)
    assert found == {
        **{f"{name}-0": of for name, of in of_each.items()},
        **{f"{name}-1": SloClass("none", ()) for name in plain.request_id},
        **{f"{name}-2": of_each[name] for name in trace.request_id[:5]},
    }
    other = replace(trace, slo_classes=(SloClass("chat", ()), *trace.slo_classes[1:]))
    with pytest.raises(
        SimError, match=r"`slo` must be one for .* got none after ttft_p99=100ms;tpot_p99=25ms in 'chat'; name another"
    ):
        merge([trace, other])


def test_a_number_that_no_class_has_is_refused() -> None:
    requests = make_records(*[Life(0, 1, 4)] * 5).requests
    for number in (-1, 3):
        with pytest.raises(SimError, match="`slo_class` of a trace must be"):
            replace(trace_of(requests), slo_class=np.array([0, 0, 1, 0, number]))


def test_searches_and_streams_refuse_them(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`slo` of chat, free-chat\), and a search holds all requests to the same"):
        sim.capacity("Llama-3.1-8B", "h100-sxm", path, slo=["ttft_p99=1s"])
    trace = sim.read_trace(path)
    with pytest.raises(ConfigError, match="cannot be streamed; leave `stream` out"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", trace, stream=True)
