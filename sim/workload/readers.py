"""Reading a trace: the container (CSV, JSON lines, Parquet, gzip) and the format are told from the content."""

import math
from dataclasses import replace
from pathlib import Path

from sim.errors import ConfigError
from sim.workload import azure, mooncake, native
from sim.workload.columns import MAX_SECONDS
from sim.workload.parts import assemble
from sim.workload.sheet import Sheet, open_sheet
from sim.workload.source import find_trace, open_trace
from sim.workload.trace import Trace


def read_trace(path: str | Path, *, rate_scale: float = 1.0, limit: int | None = None) -> Trace:
    """The trace in a file, or a bundled one by name. `limit` keeps the first requests; `rate_scale` 2 doubles the rate.

    Raises TraceError, with file, line and column, for what is not a valid trace, and ConfigError for a bad option.
    """
    _check_limit(limit)
    file = find_trace(path)
    with open_trace(file) as stream:
        trace = _read(open_sheet(stream, str(path), limit))
    return scale_rate(trace, rate_scale)


def as_trace(trace: str | Path | Trace, *, rate_scale: float, limit: int | None) -> Trace:
    """As `read_trace`; a trace that is there already is cut and scaled alike."""
    if not isinstance(trace, Trace):
        return read_trace(trace, rate_scale=rate_scale, limit=limit)
    _check_limit(limit)
    return scale_rate(trace if limit is None else trace.first(limit), rate_scale)


def _read(sheet: Sheet) -> Trace:
    if not set(azure.COLUMNS).isdisjoint(sheet.columns):
        return assemble(sheet, azure.parts(sheet), azure.FORMAT)
    if not set(mooncake.COLUMNS[:3]).isdisjoint(sheet.columns):
        return assemble(sheet, mooncake.parts(sheet), mooncake.FORMAT)
    return assemble(sheet, native.parts(sheet), native.FORMAT)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` must be at least 1 request, got {limit}; leave it out to read all.")


def scale_rate(trace: Trace, rate_scale: float) -> Trace:
    """The same requests at `rate_scale` times the rate. Raises ConfigError unless it is finite, above 0 and sane."""
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise ConfigError(
            f"`rate_scale` must be a finite number above 0, got {rate_scale}; 2 doubles the request rate."
        )
    if trace.arrival_s[-1] / rate_scale > MAX_SECONDS:
        raise ConfigError(f"`rate_scale` {rate_scale} stretches the trace past {MAX_SECONDS:.0e} s; use a larger one.")
    return trace if rate_scale == 1.0 else replace(trace, arrival_s=trace.arrival_s / rate_scale)
