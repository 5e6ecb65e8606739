"""Readers: each format on small literal files, and the published traces."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError, TraceError
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from tests.shared import SHARED, needs_shared

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-17 00:00:00.0000001,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 02:00:02.5+02:00,76,15
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3001, "input_length": 512, "output_length": 3, "hash_ids": [0]}
"""
NATIVE_CSV = """arrival_s,prompt_tokens,output_tokens,request_id,priority,session_id,hash_ids,hash_block_size
0.25,40,7,a,-1,s1,"[5, 6, 7]",16
1e0, 33 ,8,b, +2 ,s1,5 6,32
"""
NATIVE_JSONL = """
{"arrival_s": 1, "prompt_tokens": 17, "output_tokens": 3, "hash_ids": [9, 8], "measured": {"first_token_s": 2.5}}

{"arrival_s": 1.5, "prompt_tokens": 16, "output_tokens": 1, "hash_ids": [9], "measured": {"first_token_s": 3.5}}
"""


def read(
    folder: Path, text: str | bytes, *, name: str = "t", limit: int | None = None, rate_scale: float = 1.0
) -> Trace:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, limit=limit, rate_scale=rate_scale)


def test_azure_times_are_exact_seconds_from_the_first_request(tmp_path: Path) -> None:
    """Seven digits of a time stamp survive: each time is the double nearest to the true difference."""
    trace = read(tmp_path, AZURE)
    assert trace.arrival_s.tolist() == [0.0, 4.3145790, 20653.3194101]
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.request_id == ("r0", "r1", "r2")
    assert (trace.format, trace.segments, trace.priority) == ("azure", None, None)


def test_azure_2024_stamps_have_zones_and_whole_seconds(tmp_path: Path) -> None:
    """The 2024 variant writes an offset, and no fraction at a whole second; offsets count."""
    assert read(tmp_path, AZURE_2024).arrival_s.tolist() == [0.0, 0.99007, 2.49007]


@given(
    digits=st.integers(1, 9),
    ticks=st.lists(st.integers(0, 10**9), min_size=2, max_size=9),
    zone=st.sampled_from(["", "Z"]),
)
def test_azure_stamps_are_exact_at_every_length(digits: int, ticks: list[int], zone: str) -> None:
    """One to nine digits behind the second, all of a file alike, with a zone or without."""
    ticks, unit_ns = sorted(ticks), 10 ** (9 - digits)
    first = datetime.fromisoformat("2023-12-31T23:59:58")
    lines = [
        f"{first + timedelta(seconds=tick // 10**digits)}.{tick % 10**digits:0{digits}}{zone},1,1\n" for tick in ticks
    ]
    with TemporaryDirectory() as folder:
        trace = read(Path(folder), "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines))
    assert trace.arrival_s.tolist() == [(tick - ticks[0]) * unit_ns / 10**9 for tick in ticks]


def test_a_file_of_one_zone_is_read_at_once_as_row_by_row(tmp_path: Path) -> None:
    """An offset that all rows have, and one that is another in the last row."""
    alike = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,1,1\n2024-05-10 00:00:02.0+00:00,1,1\n"
    )
    assert read(tmp_path, alike).arrival_s.tolist() == [0.0, 1.5]
    assert read(tmp_path, alike + "2024-05-10 02:00:03.0+02:00,1,1\n").arrival_s.tolist() == [0.0, 1.5, 2.5]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    assert read(tmp_path, AZURE.encode("utf-8-sig")).prompt_tokens.tolist() == [374, 396, 879]


def test_mooncake_prompts_are_blocks_of_512_and_a_rest(tmp_path: Path) -> None:
    """Each hash id is 512 tokens, the last what remains; milliseconds become seconds."""
    trace = read(tmp_path, MOONCAKE)
    assert trace.arrival_s.tolist() == [0.0, 3.001]
    assert trace.segments == (((0, 512), (1, 512), (2, 1)), ((0, 512),))
    assert trace.format == "mooncake"


def test_native_csv_has_all_optional_columns(tmp_path: Path) -> None:
    """Ids as a JSON list or with spaces, a block size a row, signed priorities, blanks around numbers."""
    trace = read(tmp_path, NATIVE_CSV)
    assert trace.request_id == ("a", "b")
    assert trace.priority is not None
    assert trace.priority.tolist() == [-1, 2]
    assert trace.session_id == ("s1", "s1")
    assert trace.segments == (((5, 16), (6, 16), (7, 8)), ((5, 32), (6, 1)))
    assert trace.prompt_tokens.tolist() == [40, 33]
    assert trace.format == "native"


def test_native_jsonl_takes_blocks_of_16_when_nothing_is_said(tmp_path: Path) -> None:
    """Blank lines are passed over, `measured` is left alone, the block size is vLLM's default."""
    trace = read(tmp_path, NATIVE_JSONL)
    assert trace.arrival_s.tolist() == [1.0, 1.5]
    assert trace.segments == (((9, 16), (8, 1)), ((9, 16),))


def test_integer_ids_become_text(tmp_path: Path) -> None:
    """Request and session ids may be numbers in JSON."""
    trace = read(tmp_path, '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "request_id": 7, "session_id": 9}')
    assert (trace.request_id, trace.session_id) == (("7",), ("9",))


def test_an_array_is_read_as_its_lines_would_be(tmp_path: Path) -> None:
    """JSON as data frames and web pages write it, in one line or many, with items that no buffer holds."""
    lines = [json.loads(line) for line in MOONCAKE.splitlines()]
    for text in (json.dumps(lines), json.dumps(lines, indent=1), "\ufeff\n " + json.dumps(lines) + "\n"):
        trace = read(tmp_path, text)
        assert (trace.segments, trace.format) == (read(tmp_path, MOONCAKE).segments, "mooncake")
    ids = list(range(60_000))
    long = {"arrival_s": 0, "prompt_tokens": 16 * len(ids), "output_tokens": 1, "hash_ids": ids}
    trace = read(tmp_path, json.dumps([long, long | {"arrival_s": 1}]))
    assert trace.segments is not None
    assert [len(prompt) for prompt in trace.segments] == [60_000, 60_000]


@pytest.mark.parametrize("quoted", [0, 1500, 2999])
def test_lines_with_quotes_and_without_are_read_alike(tmp_path: Path, quoted: int) -> None:
    """From the first quote on, cells may hold commas and line ends; places are still those of the lines."""
    rows = [f"r{row}, {row},1,2\n" for row in range(3000)]
    rows[quoted] = f'"r,{quoted}\n",{quoted},1,2\n'
    header = "request_id,arrival_s,prompt_tokens,output_tokens\n"
    trace = read(tmp_path, header + "".join(rows))
    assert trace.arrival_s.tolist() == list(range(3000))
    assert (trace.request_id[quoted], trace.request_id[-1 - quoted]) == (f"r,{quoted}", f"r{2999 - quoted}")
    with pytest.raises(TraceError, match="line 3003: `output_tokens` must be"):
        read(tmp_path, header + "".join(rows) + "x,3000,1,0\n")


@pytest.mark.parametrize("text", [AZURE, MOONCAKE, NATIVE_CSV, NATIVE_JSONL])
@pytest.mark.parametrize(
    "dress", [gzip.compress, lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")]
)
def test_content_decides_not_the_name(tmp_path: Path, text: str, dress: Callable[[bytes], bytes]) -> None:
    """Gzip, a byte order mark or CRLF, under a misleading name, read as the plain file does."""
    plain, dressed = read(tmp_path, text), read(tmp_path, dress(text.encode()), name="misleading.parquet")
    assert dressed.request_id == plain.request_id
    assert dressed.segments == plain.segments
    assert dressed.format == plain.format
    np.testing.assert_array_equal(dressed.arrival_s, plain.arrival_s)


def test_rate_scale_divides_times_and_limit_keeps_the_first(tmp_path: Path) -> None:
    """Twice the rate halves the times; rows past the limit are not even looked at."""
    broken_tail = AZURE + "not a row\n"
    trace = read(tmp_path, broken_tail, limit=2, rate_scale=2.0)
    assert trace.arrival_s.tolist() == [0.0, 2.1572895]
    assert len(trace.request_id) == len(trace) == 2


@pytest.mark.parametrize("rate_scale", [0.0, -1.0, float("nan"), float("inf")])
def test_rate_scale_must_be_finite_and_positive(tmp_path: Path, rate_scale: float) -> None:
    """A rate scale that no traffic has is refused."""
    with pytest.raises(ConfigError, match="`rate_scale` must be a finite number above 0"):
        read(tmp_path, AZURE, rate_scale=rate_scale)


def test_rate_scale_must_not_stretch_time_past_its_precision(tmp_path: Path) -> None:
    """A scale so small that the clock would lose its digits is refused."""
    with pytest.raises(ConfigError, match="stretches the trace past 1e\\+10 s"):
        read(tmp_path, AZURE, rate_scale=1e-9)


def test_limit_must_be_positive(tmp_path: Path) -> None:
    """A trace needs at least one request."""
    with pytest.raises(ConfigError, match="`limit` must be at least 1 request, got 0"):
        read(tmp_path, AZURE, limit=0)


def test_chunks_join_without_a_seam(tmp_path: Path) -> None:
    """A file of several chunks, with a limit inside one, gives every row once and in order."""
    rows = "".join(f"{index},{index + 1},{2 * index + 1}\n" for index in range(5000))
    trace = read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n" + rows, limit=4321)
    assert trace.arrival_s.tolist() == list(range(4321))
    assert trace.prompt_tokens.tolist() == list(range(1, 4322))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    """`--trace <(...)` works: nothing is read twice."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(AZURE,))
    writer.start()
    assert len(read_trace(pipe)) == 3
    writer.join()


@needs_shared
@pytest.mark.parametrize(
    ("name", "num_requests", "output_tokens", "last_s", "form"),
    [
        ("azure_llm_2023_conv.csv", 19_366, 4_088_665, 3501.721937, "azure"),
        ("azure_llm_2023_code.csv", 8_819, 245_896, 3435.948056, "azure"),
        ("mooncake_conversation.jsonl", 12_031, 4_122_048, 3536.999, "mooncake"),
    ],
)
def test_published_traces_read_whole(
    name: str, num_requests: int, output_tokens: int, last_s: float, form: str
) -> None:
    """Every request of the published traces arrives, and their totals are right."""
    trace = read_trace(SHARED / "traces" / name)
    assert (len(trace), int(trace.output_tokens.sum()), trace.format) == (num_requests, output_tokens, form)
    assert trace.arrival_s[-1] == last_s


@needs_shared
def test_segments_of_a_published_trace_cover_its_prompts() -> None:
    """The blocks of each Mooncake prompt add up to its length."""
    trace = read_trace(SHARED / "traces" / "mooncake_conversation.jsonl")
    assert trace.segments is not None
    covered = [sum(tokens for _, tokens in prompt) for prompt in trace.segments]
    assert covered == trace.prompt_tokens.tolist()
