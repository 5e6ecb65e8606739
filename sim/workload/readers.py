"""Reading a trace: the container (CSV, JSON lines, Parquet, gzip) and the format are told from the content."""

from pathlib import Path

from sim.errors import ConfigError
from sim.workload import azure, mooncake, native
from sim.workload.parts import assemble
from sim.workload.rates import at_rates
from sim.workload.sheet import Sheet, open_sheet
from sim.workload.source import find_trace, open_trace
from sim.workload.trace import Trace


def read_trace(
    path: str | Path, *, rate_scale: float = 1.0, request_rate: float | None = None, limit: int | None = None
) -> Trace:
    """The trace in a file, or a bundled one by name. `limit` keeps the first requests; `rate_scale` 2 doubles their rate,
    `request_rate` sets it (requests/s, infinite: all at once) and keeps their pattern.

    Raises TraceError, with file, line and column, for what is not a valid trace, and ConfigError for a bad option.
    """
    _check_limit(limit)
    file = find_trace(path)
    with open_trace(file) as stream:
        trace = _read(open_sheet(stream, str(path), limit))
    return at_rates(trace, rate_scale=rate_scale, request_rate=request_rate)


def as_trace(
    trace: str | Path | Trace, *, rate_scale: float = 1.0, request_rate: float | None = None, limit: int | None = None
) -> Trace:
    """As `read_trace`; a trace that is there already is cut and scaled alike."""
    if not isinstance(trace, Trace):
        return read_trace(trace, rate_scale=rate_scale, request_rate=request_rate, limit=limit)
    _check_limit(limit)
    cut = trace if limit is None else trace.first(limit)
    return at_rates(cut, rate_scale=rate_scale, request_rate=request_rate)


def _read(sheet: Sheet) -> Trace:
    if not set(azure.COLUMNS).isdisjoint(sheet.columns):
        return assemble(sheet, azure.parts(sheet), azure.FORMAT)
    if not set(mooncake.COLUMNS[:3]).isdisjoint(sheet.columns):
        return assemble(sheet, mooncake.parts(sheet), mooncake.FORMAT)
    return assemble(sheet, native.parts(sheet), native.FORMAT)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` must be at least 1 request, got {limit}; leave it out to read all.")
