"""Limits of classes: each request by its own class's, in the figures of the whole and of each class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.engine.records import RequestRecords
from sim.errors import ConfigError, SimError
from sim.metrics.slo_classes import limit_figures
from sim.specs.slo import SloClass, parse_slo
from sim.workload.load import trace_sha256
from sim.workload.merge import merge
from sim.workload.trace import Trace
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


def test_searches_streams_and_merging_refuse_them(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`slo` of chat, free-chat\), and a search holds all requests to the same"):
        sim.capacity("Llama-3.1-8B", "h100-sxm", path, slo=["ttft_p99=1s"])
    trace = sim.read_trace(path)
    with pytest.raises(ConfigError, match="cannot be streamed; leave `stream` out"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", trace, stream=True)
    with pytest.raises(SimError, match="merge without `slo`"):
        merge([trace, trace])
