"""Tables of any columns, read by the names that the user gives."""

import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim.errors import ConfigError, TraceError
from sim.workload.readers import as_trace, read_trace
from sim.workload.trace import Trace
from sim.workload.writers import write_trace

LOG = """ts,tokens in,tokens_out,user,status
1715299200000,374,44,u1,200
1715299200250,396,0,u2,500
1715299204000,879,55,u1,200
"""
COLUMNS = "arrival=ts:ms, prompt=tokens in,output=tokens_out,session=user"


def read(
    folder: Path, text: str | bytes, columns: str | Mapping[str, str] = COLUMNS, *, limit: int | None = None
) -> Trace:
    file = folder / "t"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, columns=columns, limit=limit)


def test_a_log_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    """Milliseconds of the epoch become seconds since the first request; what failed is left out, and said so."""
    trace = read(tmp_path, LOG)
    assert trace.arrival_s.tolist() == [0.0, 4.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([374, 879], [44, 55])
    assert (trace.session_id, trace.format) == (("u1", "u1"), "by columns")
    assert trace.notes == (f"{tmp_path / 't'}: 1 of its lines, with no `tokens_out` (they failed), is left out.",)


def test_the_same_columns_are_found_in_any_container(tmp_path: Path) -> None:
    """CSV with gzip, JSON lines, an array, Parquet and a frame; a limit counts requests."""
    parquet = pytest.importorskip("pyarrow.parquet")
    frame = pd.read_csv(io.StringIO(LOG))
    rows = frame.to_dict("records")
    parquet.write_table(__import__("pyarrow").table(frame.to_dict("list")), tmp_path / "p")
    traces = [
        read(tmp_path, gzip.compress(LOG.encode())),
        read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows)),
        read(tmp_path, json.dumps(rows)),
        read_trace(tmp_path / "p", columns=COLUMNS),
        read_trace(frame, columns=COLUMNS),
        as_trace(frame, columns=COLUMNS, limit=2),
    ]
    for trace in traces:
        assert trace.arrival_s.tolist() == [0.0, 4.0]
        assert trace.session_id == ("u1", "u1")
    assert len(read(tmp_path, LOG, limit=1)) == 1


def test_keys_within_keys_are_found_in_rows_that_differ(tmp_path: Path) -> None:
    """A gateway's log: the usage is an object, and not all rows have all keys."""
    rows = [
        {"time": "2024-05-10T00:00:00.5Z", "usage": {"in": 10, "out": 2}, "a.b": "x"},
        {"time": "2024-05-10T02:00:01,25+0200", "usage": {"in": 20, "out": None}, "a.b": "y", "error": "timeout"},
        {"time": "2024-05-10T00:00:02Z", "usage": None, "a.b": "w"},
        {"error": "no model"},
        {"time": "2024-05-10 00:00:03", "usage": {"in": 30, "out": 4}, "a.b": "z"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    trace = read(tmp_path, text, {"arrival": "time", "prompt": "usage.in", "output": "usage.out", "request_id": "a.b"})
    assert trace.arrival_s.tolist() == [0.0, 2.5]
    assert (trace.request_id, trace.prompt_tokens.tolist()) == (("x", "z"), [10, 30])
    assert trace.notes == (f"{tmp_path / 't'}: 3 of its lines, with no `usage.out` (they failed), are left out.",)


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_each_unit_of_time(tmp_path: Path, unit: str, per_s: int) -> None:
    """From any beginning, think times too, which are lengths of time."""
    text = f"t,p,o,s,w\n{9 * per_s},1,1,a,0\n{11 * per_s},1,1,a,{2 * per_s}\n"
    trace = read(tmp_path, text, f"arrival=t:{unit},prompt=p,output=o,session=s,think_time_s=w:{unit}")
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.think_time_s is not None
    assert trace.think_time_s.tolist() == [0.0, 2.0]


def test_a_column_may_have_a_colon_and_time_stamps_of_a_frame_are_times() -> None:
    """Only a unit behind a colon is one; pandas' own stamps count as such."""
    frame = pd.DataFrame(
        {"t:at": pd.to_datetime(["2024-05-10 00:00", "2024-05-10 00:01"]), "p:ms": [1, 2], "o": [3, np.nan]}
    )
    trace = as_trace(frame, columns="arrival=t:at,prompt=p:ms,output=o")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([1], [3])


def test_a_native_trace_by_its_columns_is_itself(tmp_path: Path) -> None:
    """All fields of the bundled conversations under other names; times count from the first request."""
    native = read_trace("multi-turn", limit=50)
    write_trace(native, tmp_path / "native.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "native.jsonl").read_text().splitlines()]
    fields = list(rows[0])
    text = "".join(json.dumps({f"my {key}": row[key] for key in fields}) + "\n" for row in rows)
    trace = read(tmp_path, text, {field: f"my {field}" for field in fields})
    assert (trace.segments, trace.session_id, trace.request_id) == (
        native.segments,
        native.session_id,
        native.request_id,
    )
    np.testing.assert_array_equal(trace.arrival_s, native.arrival_s - native.arrival_s[0])


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            LOG,
            "arrival=time,prompt=ts,output=ts",
            "t: the column `time` is missing; the columns found are ts, tokens in",
        ),
        (LOG, "arrival=ts:ms,prompt=user,output=tokens_out", "t, line 2: `user` must be an integer from 1 .*got u1"),
        (LOG, "arrival=ts,prompt=tokens in,output=tokens_out", "t, line 2: `ts` must be a finite number of seconds"),
        (LOG, "arrival=user,prompt=tokens in,output=tokens_out", "t, line 2: `user` must be a time like .*got u1"),
        (LOG, "arrival=user:ns,prompt=ts,output=ts", "`user` must be a finite number of nanoseconds"),
        ("t,p,o\n5,1,1\n4,1,1\n", "arrival=t,prompt=p,output=o", "line 3: requests must stand in order of arrival"),
        (
            "t,p,o\n5,1,0\n",
            "arrival=t,prompt=p,output=o",
            "got none: 1 of its lines, with no `o` .they failed., do not count; check the file",
        ),
        ('{"t": 1, "p": {"q": 1}}', "arrival=t,prompt=p.r,output=t", "t, line 1: there is no `p.r`; the keys are t, p"),
        ("t,p,o\n5,1,1\n", "arrival=t,prompt=p,output=o,hash_block_size=o", "means nothing without `hash_ids`"),
    ],
)
def test_what_a_table_has_wrong_is_named_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, columns: str, message: str
) -> None:
    """File, line, column, rule and what was got."""
    monkeypatch.chdir(tmp_path)
    Path("t").write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace("t", columns=columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("arrival", "`columns` must be arrival=COLUMN.*got 'arrival' in a place"),
        ("", "got 'nothing' in a place"),
        ("arrival=t,promt=p,output=o", "`columns` has no field promt; .*Did you mean prompt"),
        ("arrival=t,arrival_s=t,prompt=p,output=o", "must name each field once, got arrival_s again"),
        ("arrival=t,prompt=p", "must say where `output_tokens` is"),
    ],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, columns: str, message: str) -> None:
    """Before the file is read."""
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / "none", columns=columns)


def test_requests_in_memory_have_no_columns() -> None:
    """A Trace has its own."""
    with pytest.raises(ConfigError, match="`columns` and `tokenizer` are for files and DataFrames, got a Trace"):
        as_trace(read_trace("chat", limit=1), columns=COLUMNS)
