"""Opening a trace file: plain or gzip, text or Parquet, with a sentence for whatever cannot be opened."""

import gzip
import io
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from sim.errors import TraceError, nearest
from sim.inputs import MAX_YAML_BYTES, is_there
from sim.specs.data import data_dir
from sim.units import MIB

GZIP_MAGIC = b"\x1f\x8b"
BUFFER_BYTES = 65_536
MAX_LINE_BYTES = 16 * MIB  # a prompt of a million tokens has half a MiB of `hash_ids`
MAX_BLANK_BYTES = MIB
MAX_REPORT_BYTES = 1024 * MIB  # a report of vllm bench is one line with every gap between tokens
REPORT_KEYS = ("num_prompts", "input_lens", "output_lens")  # of such a report
DOCUMENT_KEYS = (*REPORT_KEYS, "benchmarks", "resourceSpans")  # and of others that may be one value over all lines
DOCUMENT_MARKS = tuple(f'"{key}"'.encode() for key in DOCUMENT_KEYS)
STDIN = "-"


def find_trace(path: str | Path) -> Path:
    """The file that `path` names: a file as it is, or a bundled trace or workload as `chat`, `chat.csv` or `traces/chat.csv`;
    `-` is standard input, and stays as it is.

    Raises TraceError for a folder and for what does not exist.
    """
    given = Path(path)
    if str(path) == STDIN:
        return given
    if is_there(given, Path.is_dir):
        raise TraceError(f"{given}: a trace must be a file, got a folder; name one of the files in it.")
    if is_there(given):
        return given
    bundled = {file.name: file for file in bundled_traces()}
    by_name = bundled | {file.stem: file for file in reversed(bundled.values())}  # chat.csv before chat.yaml
    if given.parent in {Path(), Path("traces")} and given.name in by_name:
        return by_name[given.name]
    hint = nearest(str(given), [*_beside(given), *by_name])
    names = ", ".join(dict.fromkeys(file.stem for file in bundled.values()))
    raise TraceError(f"{given}: there is no such file; the bundled traces and workloads are {names}.{hint}")


def _beside(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return [str(file) for file in path.parent.iterdir()]
    return []


def bundled_traces() -> list[Path]:
    """The traces, and the workloads that traces are drawn from, that come with Servecast, by name."""
    return sorted(file for file in data_dir("traces").iterdir() if file.suffix in {".csv", ".jsonl", ".yaml"})


def yaml_text(stream: io.BufferedReader, name: str) -> str:
    """The text of a stream that is YAML. Raises TraceError for what is too large or no text."""
    data = stream.read(MAX_YAML_BYTES + 1)
    if len(data) > MAX_YAML_BYTES:
        raise TraceError(f"{name}: must be a YAML file of at most {MAX_YAML_BYTES // MIB:,} MiB, got a larger one.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"{name}: must be a YAML file in UTF-8, got binary content.") from None


@contextmanager
def open_trace(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a trace, decompressed if need be. Raises TraceError for what is unreadable, empty or cut short."""
    try:
        with _opened(path) as file, _decompressed(file) as stream:
            if not stream.peek(1):
                raise TraceError(f"{trace_name(path)}: the file is empty; a trace needs at least one request.")
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{trace_name(path)}: the gzip data is damaged or cut short ({error}); copy the file again."
        ) from error
    except OSError as error:
        raise TraceError(
            f"{trace_name(path)}: cannot be read ({error.strerror}); check the file and its permissions."
        ) from error


def trace_name(path: str | Path) -> str:
    """The name of the source in messages and results."""
    return "stdin" if str(path) == STDIN else str(path)


def _opened(path: Path) -> io.BufferedReader:
    """The file, or standard input, which stays open behind it."""
    if str(path) != STDIN:
        return path.open("rb")
    try:
        os.read(0, 0)  # the stand-in for a closed stdin cannot be read
    except OSError:
        raise TraceError("stdin is closed; pipe a trace into it, or name a file.") from None
    return open(0, "rb", closefd=False)


def _decompressed(file: io.BufferedReader) -> io.BufferedReader:
    if file.peek(2)[:2] != GZIP_MAGIC:
        return file
    return io.BufferedReader(gzip.GzipFile(fileobj=file), BUFFER_BYTES)


def text_lines(stream: io.BufferedReader, name: str) -> Iterator[str]:
    """Lines of UTF-8 text, a byte order mark left out; raises TraceError with the line where it is something else."""
    if b"\0" in stream.peek(BUFFER_BYTES):
        raise TraceError(
            f"{name}: a trace must be CSV, JSON lines or Parquet, got binary data (or UTF-16); save it as UTF-8 text."
        )
    return chain.from_iterable(_blocks(stream, name))


def _blocks(stream: io.BufferedReader, name: str) -> Iterator[Iterable[str]]:
    """Some lines at a time."""
    num_before = 0
    for block in _whole_lines(stream, name):
        if not num_before:
            block[0] = block[0].removeprefix(BOM_UTF8)
        try:
            yield list(map(bytes.decode, block))
        except UnicodeDecodeError:
            yield _each_line(block, name, num_before)
        num_before += len(block)


def _whole_lines(stream: io.BufferedReader, name: str) -> Iterator[list[bytes]]:
    """Some lines at a time. A few bytes of gzip can hold gigabytes without an end of line, or with nothing but ends."""
    begun: list[bytes] = []
    num_bytes = num_blank = 0
    most = MAX_REPORT_BYTES if any(key in stream.peek(1) for key in DOCUMENT_MARKS) else MAX_LINE_BYTES
    while data := stream.read(BUFFER_BYTES):
        last, num_blank = data.rfind(b"\n") + 1, num_blank + len(data) if data.isspace() else 0
        num_bytes += len(data)
        if not last and num_bytes > most:
            raise TraceError(f"{name}: must have no more than {most // MIB:,} MiB in a line; is it a trace?")
        if num_blank > MAX_BLANK_BYTES:
            raise TraceError(f"{name}: must have no more than {MAX_BLANK_BYTES:,} blank lines in a row; is it a trace?")
        begun.append(data[:last] if last else data)
        if last:
            yield io.BytesIO(b"".join(begun)).readlines()
            begun, num_bytes = [data[last:]], len(data) - last
    if rest := b"".join(begun):
        yield [rest]


def _each_line(block: list[bytes], name: str, num_before: int) -> Iterator[str]:
    """Line by line, to name the one that is wrong when it is reached."""
    for number, line in enumerate(block, num_before + 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            bad = error.object[error.start]
            raise TraceError(
                f"{name}, line {number}: text must be UTF-8, got the byte 0x{bad:02x}; save it as UTF-8."
            ) from None
