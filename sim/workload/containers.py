"""The containers of traces (CSV, JSON, Parquet, vLLM's log), told by their content."""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import chain, islice

from sim.errors import TraceError
from sim.workload.csv_table import csv_sheet
from sim.workload.json_array import array_items
from sim.workload.json_table import document_on_a_line, json_chunks, json_lines, json_sheet
from sim.workload.parquet_table import PARQUET_MAGIC, parquet_sheet
from sim.workload.source import text_lines
from sim.workload.table import Sheet
from sim.workload.vllm_log import LOG_LINE

MOST_BLANK_LINES = 1_000  # before the first that is not
_LOG = re.compile(rb"^[^,{\n]{0,80}(DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d ", re.MULTILINE)


def open_sheet(stream: io.BufferedReader, name: str, limit: int | None) -> Sheet:
    """Chooses the container by content; chunks have at most `limit` rows."""
    head = stream.peek(4)
    if head[:4] == PARQUET_MAGIC:
        return parquet_sheet(stream, name, limit)
    if head.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        return json_sheet(array_items(stream, name), name, limit, unit="item")
    lines = text_lines(stream, name)
    if _LOG.search(head):
        return _log_sheet(lines, name)
    begun = _to_first_text(lines)
    if not begun:
        raise TraceError(f"{name}: the file is empty; a trace needs at least one request.")
    first = begun[-1].strip()
    rest: Iterator[str] = chain(begun, lines)
    if not first.startswith("{"):
        return csv_sheet(rest, name, limit)
    return json_sheet(json_lines(document_on_a_line(rest, name) if first == "{" else rest, name), name, limit)


def _log_sheet(lines: Iterator[str], name: str) -> Sheet:
    """A log's lines, each a row."""
    rows = ((place, {LOG_LINE: line}) for place, line in enumerate(lines, 1))
    return Sheet(name, (LOG_LINE,), lambda most: json_chunks(rows, name, (LOG_LINE,), most, "line"), objects=rows)


def _to_first_text(lines: Iterator[str]) -> list[str]:
    """Lines up to and including the first that is not blank."""
    head = []
    for line in islice(lines, MOST_BLANK_LINES):
        head.append(line)
        if line.strip():
            return head
    return []
