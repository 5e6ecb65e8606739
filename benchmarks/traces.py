"""CPU time and memory that reading a trace takes: `python -m benchmarks.traces [--rows N ...] [--kinds csv jsonl parquet ...]`.

Native rows with names, times, lengths and, of the kind `sessions`, sessions in CSV; each file is read in a process of its own, whose peak resident memory
counts less that of the same interpreter with the reader imported. CPU seconds are those of reading alone. Exits 1 where a million
rows of CSV take more than MOST_S.
"""

import argparse
import gzip
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MOST_S = 3.0  # for a million rows of CSV
ROWS_AT_ONCE = 100_000
SEED = 0
READ = """
import sys, time
from sim.workload.readers import read_trace
def peak_mb(): return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
bare = peak_mb()
begun = time.process_time()
trace = read_trace(sys.argv[1])
print(time.process_time() - begun, bare, peak_mb(), len(trace))
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--kinds", nargs="+", choices=WRITERS, default=["csv", "sessions", "csv.gz", "jsonl", "parquet"]
    )
    arguments = parser.parse_args()
    print(f"{'':10}{'rows':>12}{'MB':>8}{'CPU s':>8}{'s a million':>13}{'peak MB':>9}{'bytes a row':>13}")
    slowest_s = 0.0
    for kind in arguments.kinds:
        for count in arguments.rows:
            cpu_s = measured(kind, count)
            if kind == "csv":
                slowest_s = max(slowest_s, cpu_s / count * 1e6)
    return int(slowest_s > MOST_S)


def measured(kind: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace")
        WRITERS[kind](file, count)
        found = subprocess.check_output([sys.executable, "-c", READ, str(file)], text=True)
        cpu_s, bare_mb, peak_mb, num_read = map(float, found.split())
        assert num_read == count
        size_mb = file.stat().st_size / 1e6
    more = (peak_mb - bare_mb) * 2**20 / count
    line = f"{kind:10}{count:>12,}{size_mb:>8.0f}{cpu_s:>8.2f}{cpu_s / count * 1e6:>13.2f}{peak_mb:>9.0f}{more:>13.0f}"
    print(line, flush=True)
    return cpu_s


def blocks(count: int) -> Iterator[dict[str, list[str | float | int]]]:
    """Columns of some rows at a time: Poisson arrivals, lognormal lengths."""
    rng, now_s = np.random.default_rng(SEED), 0.0
    for first in range(0, count, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, count - first)
        arrival_s = now_s + np.cumsum(rng.exponential(0.1, rows))
        now_s = float(arrival_s[-1])
        yield {
            "request_id": [f"r{row}" for row in range(first, first + rows)],
            "arrival_s": arrival_s.tolist(),
            "prompt_tokens": (rng.lognormal(6, 1, rows).astype(int) + 1).tolist(),
            "output_tokens": (rng.lognormal(5, 1, rows).astype(int) + 1).tolist(),
        }


def csv_lines(count: int, *, sessions: bool) -> Iterator[str]:
    yield "request_id,arrival_s,prompt_tokens,output_tokens" + (",session_id\n" if sessions else "\n")
    for block in blocks(count):
        rows = zip(*block.values(), strict=True)
        ends = (f",s{row % 1_000}\n" if sessions else "\n" for row in range(ROWS_AT_ONCE))
        yield "".join(
            f"{name},{at!r},{prompt},{output}{end}" for (name, at, prompt, output), end in zip(rows, ends, strict=False)
        )


def write_csv(file: Path, count: int) -> None:
    with file.open("w") as target:
        target.writelines(csv_lines(count, sessions=False))


def write_sessions(file: Path, count: int) -> None:
    with file.open("w") as target:
        target.writelines(csv_lines(count, sessions=True))


def write_gzip(file: Path, count: int) -> None:
    with gzip.open(file, "wt", compresslevel=1) as target:
        target.writelines(csv_lines(count, sessions=False))


def write_json_lines(file: Path, count: int) -> None:
    with file.open("w") as target:
        for block in blocks(count):
            target.writelines(
                f'{{"request_id": "{name}", "arrival_s": {at!r}, "prompt_tokens": {prompt}, "output_tokens": {output}}}\n'
                for name, at, prompt, output in zip(*block.values(), strict=True)
            )


def write_parquet(file: Path, count: int) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    parts = (pa.table(block) for block in blocks(count))
    first = next(parts)
    with ParquetWriter(file, first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(part)


WRITERS = {
    "csv": write_csv,
    "sessions": write_sessions,
    "csv.gz": write_gzip,
    "jsonl": write_json_lines,
    "parquet": write_parquet,
}


if __name__ == "__main__":
    sys.exit(main())
