"""Reading a trace: the container (CSV, JSON, Parquet, gzip) and the format are recognised by the content."""

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from sim.errors import ConfigError, TraceError
from sim.workload import bench, inference_perf, sharegpt, spec_file
from sim.workload.columns import MAX_INTEGER
from sim.workload.containers import open_sheet
from sim.workload.formats import told_format
from sim.workload.frames import frame_sheet, is_frame
from sim.workload.generate import generate
from sim.workload.mapping import Columns, by_columns, parse_columns
from sim.workload.rates import at_rates
from sim.workload.source import REPORT_KEYS, find_trace, open_trace, trace_name
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec
from sim.workload.table import Sheet
from sim.workload.trace import Trace
from sim.workload.trace_builder import Format, assemble

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Generated(Protocol):
    """What requests can be drawn from."""

    def spec(self) -> WorkloadSpec: ...


TraceLike: TypeAlias = "str | Path | Trace | pd.DataFrame | Workload | Generated"
"""A file's path, `-` for standard input, a bundled trace's name, requests in memory, or a workload that they are drawn from."""

READ_AS_IT_IS = {"rate_scale": 1.0, "seed": 0}


def read_trace(
    path: "str | Path | pd.DataFrame",
    *,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    tokenizer: str | Path | None = None,
) -> Trace:
    """The trace in a file, on standard input (`-`), in a DataFrame, or a bundled one by name. `limit` keeps the first
    requests; `rate_scale` 2 doubles their rate, `request_rate` sets it (requests/s, infinite: all at once) and keeps
    their pattern. `seed` is for what a workload's file, or one of inference-perf, leaves to chance. `columns` says which
    columns of any table are the native fields, such as `{"arrival": "ts:ms", "prompt": "tokens_in", "output": "tokens_out"}`. `tokenizer`
    is the folder of a model's, for files of conversations, which `seed` shuffles.

    Raises TraceError, with file, line and column, for what is not a valid trace, and ConfigError for a bad option.
    """
    options: dict[str, Any] = {
        "rate_scale": rate_scale,
        "request_rate": request_rate,
        "limit": limit,
        "seed": seed,
        "columns": columns,
        "tokenizer": tokenizer,
    }
    given = {name: value for name, value in options.items() if value not in (None, READ_AS_IT_IS.get(name))}
    return replace(as_trace(path, **options), read_with=given)


def as_trace(
    trace: TraceLike,
    *,
    rate_scale: float = 1.0,
    request_rate: float | None = None,
    limit: int | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    tokenizer: str | Path | None = None,
) -> Trace:
    """As `read_trace`; a Trace is cut and scaled in the same way."""
    check_limit(limit)
    form = None if columns is None else by_columns(parse_columns(columns))
    return at_rates(_first(trace, limit, seed, form, tokenizer), rate_scale=rate_scale, request_rate=request_rate)


def _first(trace: TraceLike, limit: int | None, seed: int, form: Format | None, tokenizer: str | Path | None) -> Trace:
    """The first requests of any source, a table in the form that is given or told by its columns."""
    if isinstance(trace, str | Path):
        with open_trace(find_trace(trace)) as stream:
            return _from_stream(stream, trace_name(trace), limit, seed, form, tokenizer)
    if is_frame(trace):
        return _read(frame_sheet(trace, limit), limit, seed, form, tokenizer)
    if form is not None or tokenizer is not None:
        raise ConfigError(
            f"`columns` and `tokenizer` are for files and DataFrames, got a {type(trace).__name__}; leave them out."
        )
    if isinstance(trace, Trace):
        return _cut(trace, limit)
    workload = trace.spec() if isinstance(trace, Generated) else trace
    if isinstance(workload, WorkloadSpec | WorkloadMix):
        return _cut(generate(workload, seed), limit)
    raise TraceError(f"a trace must be a path, a Trace, a workload or a DataFrame, got {type(trace).__name__}.")


def _from_stream(
    stream: io.BufferedReader,
    name: str,
    limit: int | None,
    seed: int,
    form: Format | None,
    tokenizer: str | Path | None,
) -> Trace:
    """A table, or what a file says that is drawn."""
    if form is None and inference_perf.is_workload(stream):
        return _cut(inference_perf.read_workload(stream, name, seed), limit)
    if form is None and spec_file.is_spec(stream):
        drawn = generate(spec_file.read_stream(stream, name), seed)
        note = f"{name} is a workload: its requests are drawn with seed {seed}."
        return _cut(replace(drawn, source=name, format=spec_file.FORMAT, notes=(note,)), limit)
    return _read(open_sheet(stream, name, limit), limit, seed, form, tokenizer)


def _cut(trace: Trace, limit: int | None) -> Trace:
    return trace if limit is None else trace.first(limit)


def _read(sheet: Sheet, limit: int | None, seed: int, form: Format | None, tokenizer: str | Path | None) -> Trace:
    if form is None and sharegpt.MARK in sheet.columns:
        return sharegpt.read_conversations(sheet, limit, seed, tokenizer)
    if tokenizer is not None:
        raise ConfigError(
            f"`tokenizer` is for files of conversations, got {sheet.name}, which has lengths; leave it out."
        )
    if form is None and not set(REPORT_KEYS).isdisjoint(sheet.columns):
        return bench.read_bench_sheet(sheet, limit)
    return assemble(sheet, form or told_format(sheet), limit)


def check_limit(limit: int | None) -> None:
    """Raises ConfigError unless it is a number of requests."""
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` must be at least 1 request, got {limit}; leave it out to read all.")
    if limit is not None and limit > MAX_INTEGER:
        raise ConfigError(f"`limit` must be at most {MAX_INTEGER:,} requests, got {limit}; leave it out to read all.")
