"""Traces in parts: the same requests as the whole, from whatever they are read or drawn."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim.errors import ConfigError, SimError, TraceError
from sim.workload.arrivals import ARRIVALS, parse_arrivals
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Geometric, Lognormal, Uniform
from sim.workload.load import StreamSha256
from sim.workload.parts import StreamLike, trace_parts
from sim.workload.rate_curve import Diurnal, RampUp, Spike
from sim.workload.readers import read_trace
from sim.workload.spec import WorkloadSpec
from sim.workload.trace import Trace
from tests.makers import Ask, make_trace

CSV = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{row / 4},{row + 1},3\n" for row in range(3000))


def whole(parts: list[Trace]) -> dict[str, list[object]]:
    names = ("request_id", "arrival_s", "prompt_tokens", "output_tokens", "segments")
    several = [part.n.tolist() for part in parts if part.n is not None]
    return (
        {name: [value for part in parts for value in getattr(part, name) or ()] for name in ("request_id", "segments")}
        | {name: np.concatenate([getattr(part, name) for part in parts]).tolist() for name in names[1:4]}
        | {"n": [value for column in several for value in column]}
    )


def assert_same(parts: list[Trace], trace: Trace) -> None:
    assert whole(parts) == whole([trace])


def test_a_file_is_read_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(CSV)
    parts = list(trace_parts(path, rows_at_once=1024))
    assert [len(part) for part in parts] == [1024, 1024, 952]
    assert_same(parts, read_trace(path))
    assert_same(
        list(trace_parts(path, rows_at_once=1024, limit=1500, rate_scale=2)), read_trace(path, limit=1500, rate_scale=2)
    )


@pytest.mark.parametrize(
    "spec",
    [
        WorkloadSpec(num_requests=1000, prompt_tokens=Lognormal(50, 1, 400), output_tokens=Uniform(1, 9), prefix_tokens=40, num_prefixes=3),
        WorkloadSpec(num_requests=300, request_rate=Diurnal(3, 5, 20.0, 90.0), spikes=(Spike(20, 30, 4),), output_tokens=Geometric(4)),
        WorkloadSpec(num_requests=300, request_rate=float("inf"), prompt_tokens=Choice(((5, 1.0), (9, 2.0))), prefix_zipf=1.0, priority=2, n=Uniform(1, 4)),
        *(WorkloadSpec(num_requests=200, arrivals=parse_arrivals(f"{name}:0.5" if name in {"gamma", "weibull"} else name)) for name in ARRIVALS),
    ],
)  # fmt: skip
def test_a_workload_is_drawn_part_by_part(spec: WorkloadSpec) -> None:
    parts = list(trace_parts(spec, seed=3, rows_at_once=77))
    assert len(parts) > 1
    assert_same(parts, generate(spec, 3))


def test_parts_may_be_frames() -> None:
    frame = pd.read_csv(io.StringIO(CSV))
    parts = list(trace_parts(iter([frame[:1000], frame[1000:]]), rows_at_once=600))
    assert [len(part) for part in parts] == [600, 400, 600, 600, 600, 200]
    assert np.concatenate([part.arrival_s for part in parts]).tolist() == frame["arrival_s"].tolist()


def test_no_more_is_read_than_is_asked_for() -> None:
    trace = make_trace([Ask("a", 1, 1)])

    def endless() -> Iterator[Trace]:
        while True:
            yield trace

    assert len(list(trace_parts(endless(), limit=3))) == 3


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (
            iter([make_trace([Ask("a", 1, 1, 5.0)]), make_trace([Ask("b", 1, 1, 4.0)])]),
            "got one at 4 s after one at 5 s",
        ),
        (WorkloadSpec(turns=Geometric(3)), "a workload with `turns` and `calls` cannot be streamed"),
        (WorkloadSpec(length_correlation=0.5), "a workload with `length_correlation` cannot be streamed"),
        (WorkloadSpec(exact=True), "a workload with `exact` cannot be streamed"),
        (WorkloadSpec(request_rate=RampUp("linear", 1, 2)), "a workload with `ramp_up_strategy` cannot be streamed"),
        ("multi-turn.yaml", "a workload with `turns` and `calls` cannot be streamed"),
        (7, "a stream must be a path, a workload, or an iterable"),
    ],
)
def test_what_cannot_come_in_parts_says_why(trace: StreamLike, sentence: str) -> None:
    with pytest.raises(SimError, match=sentence):
        list(trace_parts(trace))


def test_a_format_that_is_not_told_row_by_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text('{"input_lens": [1], "output_lens": [1], "num_prompts": 1}')
    with pytest.raises(ConfigError, match="requests of this format are not told row by row"):
        list(trace_parts(path))
    path.write_text("arrival_s,prompt_tokens,output_tokens\n")
    with pytest.raises(TraceError, match="there is a header and no request"):
        list(trace_parts(path))


def test_a_workload_of_many_requests_is_a_stream() -> None:
    spec = WorkloadSpec(num_requests=11_000_000, request_rate=float("inf"))
    with pytest.raises(
        ConfigError, match=r"11,000,000 requests, and 10,000,000 are drawn at most.*replay it with `stream`"
    ):
        generate(spec)
    assert len(next(trace_parts(spec, rows_at_once=10))) == 10


def test_the_fingerprint_of_a_stream_is_that_of_its_requests() -> None:
    """However it is cut; another request, or another time, has another."""
    trace = make_trace([Ask(f"r{row}", ((row % 2, 8),), 3, float(row)) for row in range(9)])

    def fingerprint(of: Trace, size: int) -> str:
        sha256 = StreamSha256()
        for part in trace_parts(of, rows_at_once=size):
            sha256.add(part)
        return sha256.hexdigest()

    assert fingerprint(trace, 9) == fingerprint(trace, 2)
    assert fingerprint(replace(trace, arrival_s=trace.arrival_s * 2), 9) != fingerprint(trace, 9)
