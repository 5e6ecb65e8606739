"""A trace in parts, for runs that are longer than memory: read, drawn or handed over as they are asked for."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from sim.errors import ConfigError, TraceError
from sim.workload import inference_perf, sharegpt, spec_file
from sim.workload.containers import open_sheet
from sim.workload.formats import told_format
from sim.workload.frames import is_frame
from sim.workload.generate import drawn_parts
from sim.workload.mapping import Columns, by_columns, parse_columns
from sim.workload.rates import scale_rate
from sim.workload.readers import Generated, TraceLike, as_trace, check_limit
from sim.workload.source import REPORT_KEYS, find_trace, open_trace, trace_name
from sim.workload.spec import WorkloadMix, WorkloadSpec
from sim.workload.table import Sheet
from sim.workload.trace import Trace
from sim.workload.trace_builder import Format, assemble_in_parts

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_ONCE = 1 << 14
"""A part of so many requests takes some MB, with what engines record meanwhile, and ten times as much where prompts say what they consist of."""
StreamLike: TypeAlias = "TraceLike | Iterable[Trace | pd.DataFrame]"
"""A trace, or its parts as they come."""


def trace_parts(
    trace: StreamLike,
    *,
    rate_scale: float = 1.0,
    limit: int | None = None,
    seed: int = 0,
    columns: Columns | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Iterator[Trace]:
    """The parts, in order of arrival. Raises TraceError and ConfigError as `read_trace` does, some of them when a part is asked for."""
    check_limit(limit)
    form = None if columns is None else by_columns(parse_columns(columns))
    last_s, num_left = 0.0, limit
    for whole in _parts(trace, seed, form, rows_at_once):
        part = whole if num_left is None else whole.first(num_left)
        if last_s > part.arrival_s[0]:
            raise TraceError(
                f"{part.source or 'the trace'}: requests must stand in order of arrival, got one at {part.arrival_s[0]:.6g} s after one at"
                f" {last_s:.6g} s; sort them by time."
            )
        last_s = float(part.arrival_s[-1])
        yield scale_rate(part, rate_scale)
        if num_left is not None:
            num_left -= len(part)
            if not num_left:
                return


def _parts(trace: StreamLike, seed: int, form: Format | None, at_once: int) -> Iterator[Trace]:
    if isinstance(trace, str | Path):
        yield from _of_file(trace, seed, form, at_once)
    elif isinstance(trace, Trace) or is_frame(trace):
        yield from _sliced(as_trace(trace), at_once)
    elif isinstance(trace, WorkloadSpec | WorkloadMix | Generated):
        yield from _drawn(trace.spec() if isinstance(trace, Generated) else trace, seed, at_once)
    elif isinstance(trace, Iterable):
        for part in cast("Iterable[Trace | pd.DataFrame]", trace):
            yield from _sliced(as_trace(part), at_once)
    else:
        raise TraceError(
            f"a stream must be a path, a workload, or an iterable of Traces or DataFrames, got {type(trace).__name__}."
        )


def _sliced(trace: Trace, at_once: int) -> Iterator[Trace]:
    for first in range(0, len(trace), at_once):
        yield trace.part(first, first + at_once)


def _drawn(workload: WorkloadSpec | WorkloadMix, seed: int, at_once: int) -> Iterator[Trace]:
    if isinstance(workload, WorkloadMix):
        raise ConfigError("a workload of several `clients` cannot be streamed; write one class, or leave `stream` out.")
    yield from drawn_parts(workload, seed, at_once)


def _of_file(path: str | Path, seed: int, form: Format | None, at_once: int) -> Iterator[Trace]:
    name = trace_name(path)
    with open_trace(find_trace(path)) as stream:
        if form is None and inference_perf.is_workload(stream):
            raise ConfigError(f"{name}: a load of inference-perf cannot be streamed; leave `stream` out.")
        if form is None and spec_file.is_spec(stream):
            note = f"{name} is a workload: its requests are drawn with seed {seed}."
            for part in _drawn(spec_file.read_stream(stream, name), seed, at_once):
                yield replace(part, source=name, format=spec_file.FORMAT, notes=(note,))
        else:
            sheet = open_sheet(stream, name, None)
            yield from assemble_in_parts(sheet, form or _told(sheet), at_once)


def _told(sheet: Sheet) -> Format:
    """Raises ConfigError for formats in which requests are told only by all of a file."""
    is_whole = sharegpt.MARK in sheet.columns or not set(REPORT_KEYS).isdisjoint(sheet.columns)
    form = None if is_whole else told_format(sheet)
    if form is None or not form.in_order or not form.row_is_request:
        raise ConfigError(
            f"{sheet.name}: requests of this format are not told row by row, in order of arrival, so that it cannot be streamed; convert it"
            " (`servecast trace convert`), or leave `stream` out."
        )
    return form
