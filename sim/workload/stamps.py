"""Points in time, written as people's logs and Azure's traces write them: `2024-05-10 00:00:00.009930+00:00`.

A time without a zone is taken as UTC; so much of a second as is written counts, up to nanoseconds.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from sim.workload.columns import Ints, show
from sim.workload.table import Chunk, Sheet

NS_PER_S = 10**9
MAX_EPOCH_S = 9 * 10**9  # 1684 to 2255: nanoseconds since 1970 are integers of 64 bits
SECOND_AT = len("2023-11-16 18:15")
_SECONDS = re.compile(r":\d\d\.\d{1,9}", re.ASCII)
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$", re.ASCII)
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):([0-5]\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)  # minute, second, fraction, zone


def stamp_column(sheet: Sheet, chunk: Chunk, column: str) -> Ints:
    """Nanoseconds since 1970, as integers, so that differences are exact."""
    cells = chunk.cells[column]
    alike = _all_alike(cells)
    if alike is not None:
        return alike
    stamps = [stamp_ns(str(cell)) for cell in cells]
    if None in stamps:
        row = stamps.index(None)
        raise sheet.fault(
            chunk.places[row],
            f"{sheet.said(column)} must be a time like 2023-11-16 18:15:46.6805900, got {show(cells[row])}; correct the row (the years 1685 to 2254 are read) or remove it.",
        )
    return np.array(stamps, dtype=np.int64)


def _all_alike(cells: Sequence[Any]) -> Ints | None:
    """The stamps at once when all plainly are of one length and of one zone, as Azure's are, else None."""
    if set(map(type, cells)) != {str} or len(set(map(len, cells))) > 1:
        return None
    zone = _ZONE.search(cells[0])
    suffix = zone[0] if zone else ""
    if not all(cell.endswith(suffix) for cell in cells):
        return None
    minutes = [cell[:SECOND_AT] for cell in cells]
    minute_ns = {minute: stamp_ns(f"{minute}:00{suffix}") for minute in dict.fromkeys(minutes)}
    second_ns = _second_ns("".join([cell[SECOND_AT : len(cell) - len(suffix)] for cell in cells]), len(cells))
    if second_ns is None or None in minute_ns.values():
        return None
    return np.array([minute_ns[minute] for minute in minutes], dtype=np.int64) + second_ns


def _second_ns(text: str, num_stamps: int) -> Ints | None:
    """So many times `:46.6805900` as integers, None when one is anything else."""
    if not text.isascii() or not _SECONDS.fullmatch(text[: len(text) // num_stamps]):
        return None
    characters = np.frombuffer(text.encode(), dtype=np.uint8).reshape(num_stamps, -1)
    digits = np.delete(characters, (0, 3), axis=1) - ord("0")
    if (characters[:, (0, 3)] != characters[0, (0, 3)]).any() or digits.max() > 9 or digits[:, 0].max() > 5:
        return None
    return digits @ 10 ** np.arange(10, 10 - digits.shape[1], -1)


def stamp_ns(text: str) -> int | None:
    """Nanoseconds since 1970 to a time in text; None for what is none."""
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
    """Seconds from the epoch to a minute on the clock; None when the calendar has no such minute, or it is centuries away."""
    try:
        moment = datetime.fromisoformat(minute + (zone or "+00:00"))
    except ValueError:
        return None
    seconds = (moment - datetime.fromisoformat("1970-01-01T00:00+00:00")) // timedelta(seconds=1)
    return seconds if abs(seconds) < MAX_EPOCH_S else None
