"""Azure LLM inference traces, 2023 and 2024: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`.

https://github.com/Azure/AzurePublicDataset: time stamps are `2023-11-16 18:15:46.6805900`, in the 2024 files
`2024-05-10 00:00:00.009930+00:00`, where a whole second has no fraction. Times become seconds since the first request.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np

from sim.workload.columns import Ints, show, token_column
from sim.workload.parts import Part
from sim.workload.sheet import Chunk, Sheet

FORMAT = "azure"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
NS_PER_S = 10**9
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):([0-5]\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)  # minute, second, fraction, zone


def parts(sheet: Sheet) -> Iterator[Part]:
    """The requests of an Azure trace. Raises TraceError with the line of the first cell that is wrong."""
    sheet.check_columns(COLUMNS)
    start_ns = None
    for chunk in sheet.chunks:
        stamps = _nanoseconds(sheet, chunk)
        start_ns = stamps[0] if start_ns is None else start_ns
        yield Part(
            places=np.array(chunk.places),
            arrival_s=(stamps - start_ns) / NS_PER_S,
            prompt_tokens=token_column(sheet, chunk, "ContextTokens"),
            output_tokens=token_column(sheet, chunk, "GeneratedTokens"),
        )


def _nanoseconds(sheet: Sheet, chunk: Chunk) -> Ints:
    """Time stamps as integers, so that differences are exact."""
    stamps = [_stamp_ns(str(cell)) for cell in chunk.cells["TIMESTAMP"]]
    if None in stamps:
        row = stamps.index(None)
        got = show(chunk.cells["TIMESTAMP"][row])
        raise sheet.fault(
            chunk.places[row],
            f"`TIMESTAMP` must be a time like 2023-11-16 18:15:46.6805900, got {got}; correct the row or remove it.",
        )
    return np.array(stamps, dtype=np.int64)


def _stamp_ns(text: str) -> int | None:
    match = _STAMP.fullmatch(text)
    if match is None:
        return None
    minute, second, fraction, zone = match.groups()
    base_s = _minute_s(minute, zone)
    if base_s is None:
        return None
    return (base_s + int(second)) * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)


@lru_cache(maxsize=64)
def _minute_s(minute: str, zone: str | None) -> int | None:
    """Seconds from the epoch to a minute on the clock; None when the calendar has no such minute."""
    try:
        moment = datetime.fromisoformat(minute + (zone or "+00:00"))
        return (moment - datetime.fromisoformat("1970-01-01T00:00+00:00")) // timedelta(seconds=1)
    except ValueError:
        return None
