"""A trace written in the native format and read again is the same trace."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError, TraceError
from sim.specs.slo import Slo, SloClass
from sim.workload.prefixes import blocks
from sim.workload.readers import read_trace
from sim.workload.table import CHUNK_ROWS
from sim.workload.trace import Segment, Trace
from sim.workload.writers import write_trace
from tests.properties import examples
from tests.shared import SHARED, needs_shared
from tests.workload.makers import make_trace

SUFFIXES = [".csv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz"]
lengths = st.integers(1, 2**31 - 1)
prompts = st.integers(1, 300)
seconds = st.floats(0, 1e10)
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)


@st.composite
def block_lists(draw: st.DrawFn) -> tuple[Segment, ...]:
    size, tokens = draw(st.integers(1, 40)), draw(prompts)
    num_blocks = -(-tokens // size)
    return blocks(draw(st.lists(st.integers(0, 2**62), min_size=num_blocks, max_size=num_blocks)), tokens, size)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    arrival_s = sorted(draw(st.lists(seconds, min_size=1, max_size=6)))
    count = len(arrival_s)

    def column(values: st.SearchStrategy[Any], *, unique: bool = False) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count, unique=unique))

    segments = column(block_lists()) if draw(st.booleans()) else None
    return make_trace(
        arrival_s,
        prompt_tokens=None if segments else column(lengths),
        output_tokens=column(lengths),
        segments=segments,
        request_id=tuple(column(names, unique=True)),
        priority=np.array(column(st.integers(-(2**63) + 1, 2**63 - 1)), dtype=np.int64)
        if draw(st.booleans())
        else None,
        n=np.array(column(st.integers(1, 16_384)), dtype=np.int64) if draw(st.booleans()) else None,
        stage=np.array(sorted(column(lengths)), dtype=np.int64) if draw(st.booleans()) else None,
        hold_s=np.array(column(seconds)) if draw(st.booleans()) else None,
        **draw(limits(count)),
        **draw(sessions(count)),
        **draw(classes(count)),
    )


@st.composite
def limits(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """One line or two for all, or no limit."""
    if draw(st.booleans()):
        return {}
    line = draw(st.none() | st.integers(0, 2**31 - 1).map(lambda number: np.full(count, number)))
    return {"line": line, "max_concurrency": np.full(count, draw(lengths))}


slos = st.builds(
    Slo,
    st.sampled_from(("ttft", "tpot", "e2el")),
    st.integers(1, 100) | st.sampled_from((99.9, 99.123456789)),
    st.floats(1e-6, 1e9),
)


@st.composite
def classes(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """A few, with no limits or some."""
    if draw(st.booleans()):
        return {}
    limited = st.lists(slos, max_size=2, unique_by=lambda slo: slo.name).map(tuple)
    found = draw(st.lists(st.builds(SloClass, names, limited), min_size=1, max_size=3, unique_by=lambda one: one.name))
    rows = st.lists(st.integers(0, len(found) - 1), min_size=count, max_size=count).map(np.array)
    return {"slo_class": draw(rows), "slo_classes": tuple(found)}


@st.composite
def sessions(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Sessions, with think times or without; or adapters, of which a session has one."""
    if draw(st.booleans()):
        adapters = st.lists(names | st.just(""), min_size=count, max_size=count).map(tuple)
        return {"lora_name": draw(st.none() | adapters)}
    think_time_s = draw(st.none() | st.lists(seconds, min_size=count, max_size=count))
    return {
        "session_id": tuple(draw(st.lists(names, min_size=count, max_size=count))),
        "think_time_s": None if think_time_s is None else np.array(think_time_s),
    }


def same(left: Trace, right: Trace) -> bool:
    assert left.request_id == right.request_id
    assert left.session_id == right.session_id
    assert left.lora_name == right.lora_name
    assert (left.segments and list(left.segments)) == (right.segments and list(right.segments))
    for column in (
        "arrival_s", "prompt_tokens", "output_tokens", "n", "priority", "think_time_s", "hold_s", "stage", "line", "max_concurrency"
    ):  # fmt: skip
        np.testing.assert_array_equal(getattr(left, column), getattr(right, column))
    assert class_of_each(left) == class_of_each(right)
    return True


def class_of_each(trace: Trace) -> list[SloClass]:
    return [] if trace.slo_class is None else [trace.slo_classes[number] for number in trace.slo_class.tolist()]


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(trace=traces())
@examples(60)
def test_native_files_keep_every_column(suffix: str, trace: Trace) -> None:
    """Times to the last bit, any names, block sizes that differ from row to row: all come back."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    with TemporaryDirectory() as folder:
        file = Path(folder) / f"t{suffix}"
        write_trace(trace, file)
        assert same(read_trace(file), trace)
        assert [entry.name for entry in Path(folder).iterdir()] == [file.name]


def test_a_file_of_many_chunks_comes_back_whole_and_in_order(tmp_path: Path) -> None:
    """Chunks are joined in every column, whether or not it holds numbers."""
    count = 2 * CHUNK_ROWS + 1
    rows = np.arange(count)
    trace = make_trace(
        (rows / 8).tolist(),
        prompt_tokens=(rows + 1).tolist(),
        segments=[((row, row + 1),) for row in range(count)],
        priority=-rows,
        session_id=tuple(f"s{row}" for row in range(count)),
    )
    write_trace(trace, tmp_path / "t.csv")
    assert same(read_trace(tmp_path / "t.csv"), trace)


@needs_shared
def test_a_published_trace_survives_conversion(tmp_path: Path) -> None:
    """Mooncake's blocks come back from native JSON lines."""
    trace = read_trace(SHARED / "traces" / "mooncake_conversation.jsonl", limit=500)
    write_trace(trace, tmp_path / "t.jsonl")
    assert same(read_trace(tmp_path / "t.jsonl"), trace)


def test_parquet_rows_are_numbered_and_limited(tmp_path: Path) -> None:
    """Faults in Parquet name the row; `limit` stops inside a chunk."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = [*range(2999), 0]
    columns = {"arrival_s": times, "prompt_tokens": [1] * 3000, "output_tokens": [1] * 3000}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t")
    assert read_trace(tmp_path / "t", limit=1500).arrival_s.tolist() == times[:1500]
    with pytest.raises(
        TraceError, match=r"row 3000: requests must stand in order .*, got one 2998 s before that of row 2999"
    ):
        read_trace(tmp_path / "t")


def test_prompts_of_one_block_are_written_with_the_traces_block_size(tmp_path: Path) -> None:
    """A short prompt's only block is a partial one of the size that the other prompts have."""
    write_trace(make_trace((0, 1), segments=[((1, 5),), ((2, 64), (3, 7))]), tmp_path / "t.csv")
    assert [row.rsplit(",", 1)[1] for row in (tmp_path / "t.csv").read_text().splitlines()[1:]] == ["64", "64"]


def test_compressed_files_carry_no_clock(tmp_path: Path) -> None:
    """The same trace gives the same bytes."""
    write_trace(make_trace(), tmp_path / "t.csv.gz")
    data = (tmp_path / "t.csv.gz").read_bytes()
    assert data[4:8] == b"\0\0\0\0"
    assert gzip.decompress(data).decode() == (
        "request_id,arrival_s,prompt_tokens,output_tokens\nr0,0.0,16,4\nr1,1.0,16,4\nr2,3.0,16,4\n"
    )


@pytest.mark.parametrize("name", ["t.txt", "t", "t.parquet.gz", "t.gz"])
def test_the_suffix_must_be_known(tmp_path: Path, name: str) -> None:
    """What to write is told from the name, and an unknown name is refused."""
    with pytest.raises(ConfigError, match=r"a trace file must end in \.csv, \.jsonl or \.parquet"):
        write_trace(make_trace(), tmp_path / name)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A missing folder is a sentence, not a traceback."""
    with pytest.raises(
        ConfigError, match=r"t\.csv cannot be written: there is no folder .*missing; name another place"
    ):
        write_trace(make_trace(), tmp_path / "missing" / "t.csv")
