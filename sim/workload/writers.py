"""Writing a trace in the native format; reading it again gives the same requests."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.outputs import writing
from sim.workload.slo_columns import written
from sim.workload.trace import COLUMNS, Segment, Trace

WRITTEN = [name for name in COLUMNS if name not in {"slo_class", "segments"}]


def write_trace(trace: Trace, path: str | Path) -> None:
    """Writes CSV, JSON lines or Parquet by the suffix (.csv, .jsonl, .parquet; .csv.gz and .jsonl.gz compressed).

    The file appears whole or not at all. Raises ConfigError for another suffix or a file that cannot be written.
    """
    target = Path(path)
    data = _encoded(trace, target)
    with writing(target) as file:
        file.write_bytes(data)


def _encoded(trace: Trace, target: Path) -> bytes:
    columns = native_columns(trace)
    suffixes = target.suffixes[-2:] if target.suffix == ".gz" else target.suffixes[-1:]
    match suffixes:
        case [".parquet"]:
            return _parquet(columns, str(target))
        case [".csv", *gz]:
            data = _csv(columns)
        case [".jsonl", *gz]:
            data = _json_lines(columns)
        case _:
            raise ConfigError(
                f"{target}: a trace file must end in .csv, .jsonl or .parquet, or in .csv.gz or .jsonl.gz."
            )
    return gzip.compress(data, mtime=0) if gz else data


def native_columns(trace: Trace) -> dict[str, Sequence[Any]]:
    """The columns of the native format that the trace has something for."""
    columns: dict[str, Sequence[Any]] = {}
    for name in WRITTEN:
        values = getattr(trace, name)
        if values is not None:
            columns[name] = values.tolist() if isinstance(values, np.ndarray) else values
    if trace.slo_class is not None:
        columns["slo_class"], columns["slo"] = written(trace)
    if trace.segments is not None:
        columns["hash_ids"] = [[content for content, _ in prompt] for prompt in trace.segments]
        columns["hash_block_size"] = block_sizes(trace.segments)
    return columns


def block_sizes(segments: Iterable[tuple[Segment, ...]]) -> list[int]:
    """Each prompt's block size: that of its first block, or of the largest anywhere when it has only one."""
    firsts = [(len(prompt), prompt[0][1]) for prompt in segments]
    largest = max(tokens for _, tokens in firsts)
    return [tokens if count > 1 else largest for count, tokens in firsts]


def _csv(columns: dict[str, Sequence[Any]]) -> bytes:
    if "hash_ids" in columns:
        columns = columns | {"hash_ids": [" ".join(map(str, ids)) for ids in columns["hash_ids"]]}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _json_lines(columns: dict[str, Sequence[Any]]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows).encode()


def _parquet(columns: dict[str, Sequence[Any]], name: str) -> bytes:
    try:
        from pyarrow import table
        from pyarrow.parquet import write_table
    except ImportError:
        raise ConfigError(
            f"{name}: writing Parquet needs pyarrow; install `servecast[parquet]`, or write CSV."
        ) from None
    data = io.BytesIO()
    write_table(table({column: list(values) for column, values in columns.items()}), data)
    return data.getvalue()
