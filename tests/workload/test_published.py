"""Published traces: each format on rows of its kind, with what is said of the rows that are no requests."""

import gzip
import json
from pathlib import Path

import pytest

from sim.errors import TraceError
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from sim.workload.writers import write_trace
from tests.workload.makers import piped

BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log
19440161.5,,2,ChatGPT,36,0,36,API log
19440192.0,,8,GPT-4,1779,123,1902,API log
"""
OLD_BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
"""
SERVEGEN = "request_id,timestamp,input_tokens,output_tokens\n0,0.5,10,20\n1,1.2,15,25\n"
BATCH: list[dict[str, object]] = [
    {"request_id": 0, "type": "text", "input_length": 61, "output_length": 2370, "duration": 14000},
    {"request_id": 1, "type": "text", "input_length": 54, "output_length": 2031, "duration": 11630},
]


def chat(chat_id: int, parent: int, second: float, tokens: int, *ids: int, output: int = 5) -> dict[str, object]:
    return {
        "chat_id": chat_id, "parent_chat_id": parent, "timestamp": second, "input_length": tokens, "output_length": output,
        "type": "text", "turn": 1 if parent < 0 else 2, "hash_ids": list(ids),
    }  # fmt: skip


BAILIAN: list[dict[str, object]] = [
    chat(7, -1, 0.0, 20, 1, 2),
    chat(8, -1, 0.5, 16, 3),
    chat(9, 7, 61.114, 40, 1, 4, 5),
    chat(10, 7, 62.0, 33, 1, 4, 6),  # a branch
    chat(11, 9, 63.0, 33, 1, 4, 7),
    chat(12, 6, 64.0, 3, 8),  # its parent came before the trace
    chat(13, 8, 65.0, 3, 8, output=0),
]
LLMSERVINGSIM: list[dict[str, object]] = [
    {"session_id": "s", "arrival_time_ns": 4_000_000_000, "sub_requests": [
        {"input_toks": 20, "output_toks": 3, "tool_duration_ns": 500_000_000, "input_tok_ids": list(range(20))},
        {"input_toks": 18, "output_toks": 4, "input_tok_ids": [*range(16), 98, 99]},
    ]},
    {"input_toks": 16, "output_toks": 2, "arrival_time_ns": 1_000_000_000, "input_tok_ids": list(range(16)), "output_tok_ids": [1, 2]},
    {"input_toks": 5, "output_toks": 1, "arrival_time_ns": 2_500_000_000},
]  # fmt: skip


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(folder: Path, text: str, limit: int | None = None) -> Trace:
    """From the plain file; a gzipped one on standard input and its conversion to the native format have the same requests."""
    (folder / "t").write_text(text)
    (folder / "t.gz").write_bytes(gzip.compress(text.encode()))
    trace = read_trace(folder / "t", limit=limit)
    write_trace(trace, folder / "native.jsonl")
    for again in (piped(folder / "t.gz", limit), read_trace(folder / "native.jsonl")):
        assert again.arrival_s.tolist() == trace.arrival_s.tolist()
        assert (again.session_id, again.segments) == (trace.session_id, trace.segments)
    return trace


def test_burstgpt_leaves_out_failures_and_says_so(tmp_path: Path) -> None:
    """Seconds from the first request; 0 response tokens are a failure."""
    trace = read(tmp_path, BURSTGPT)
    assert (trace.arrival_s.tolist(), trace.format, trace.session_id) == ([0.0, 82.0], "burstgpt", None)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([906, 1779], [446, 123])
    assert trace.notes == (
        f"{tmp_path / 't'}: 1 of its lines, with no `Response tokens` (they failed), is left out.",
        f"{tmp_path / 't'}: the requests to all its models come together, and its sessions are not used, as it does not say what prompts repeat.",
    )
    assert read(tmp_path, OLD_BURSTGPT).prompt_tokens.tolist() == [472]


def test_a_limit_counts_requests_and_not_failures(tmp_path: Path) -> None:
    """The first two that got an answer, and no row beyond the chunk that has them."""
    assert read(tmp_path, BURSTGPT, limit=2).output_tokens.tolist() == [446, 123]
    many = BURSTGPT + "19440200.0,,8,GPT-4,1779,123,1902,API log\n" * 3000 + "broken\n"
    assert len(read(tmp_path, many, limit=1500)) == 1500


def test_bailian_chats_are_turns_of_sessions(tmp_path: Path) -> None:
    """A chat goes on from its parent; a branch, and one whose parent is not there, begin sessions; blocks have 16 tokens."""
    trace = read(tmp_path, lines(BAILIAN))
    assert trace.session_id == ("s0", "s1", "s0", "s2", "s0", "s3")
    assert trace.arrival_s.tolist() == [0.0, 0.5, 61.114, 62.0, 63.0, 64.0]
    assert trace.segments is not None
    assert trace.segments[0] == ((1, 16), (2, 4))
    assert trace.notes == (f"{tmp_path / 't'}: 1 of its lines, with no `output_length` (they failed), is left out.",)


def test_servegen_workloads_and_batches(tmp_path: Path) -> None:
    """Times as generated; a batch comes all at once."""
    trace = read(tmp_path, SERVEGEN)
    assert (trace.arrival_s.tolist(), trace.request_id, trace.format) == ([0.5, 1.2], ("0", "1"), "servegen")
    batch = read(tmp_path, lines(BATCH))
    assert (batch.arrival_s.tolist(), batch.output_tokens.tolist()) == ([0.0, 0.0], [2370, 2031])
    assert batch.notes == (f"{tmp_path / 't'}: a batch: its requests come all at once.",)


def test_llmservingsim_sessions_and_requests_in_any_order(tmp_path: Path) -> None:
    """Turns wait for a tool; tokens say what prompts share, a prompt without them is like no other."""
    trace = read(tmp_path, lines(LLMSERVINGSIM))
    assert trace.arrival_s.tolist() == [1.0, 2.5, 4.0, 4.0]
    assert trace.prompt_tokens.tolist() == [16, 5, 20, 18]
    assert trace.session_id == ("alone 2", "alone 3", "s", "s")
    assert trace.think_time_s is not None
    assert trace.think_time_s.tolist() == [0.0, 0.0, 0.0, 0.5]
    assert trace.segments is not None
    one, alone, first, second = trace.segments
    assert one == first[:1] == second[:1]
    assert first[1] != second[1]
    assert alone[0][0] not in {content for path in (one, first, second) for content, _ in path}
    assert len(read(tmp_path, lines(LLMSERVINGSIM), limit=2)) == 2
    assert read(tmp_path, lines(LLMSERVINGSIM[2:])).session_id is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BURSTGPT.replace("906", "x"), "t, line 2: `Request tokens` must be an integer from 1 .*got x"),
        (BURSTGPT.replace("446", "0").replace("123", "0"), "t: a trace needs at least one request, got none: 3 of its lines, with no"),
        (BURSTGPT.replace("19440192", "1"), "t, line 4: requests must stand in order of arrival"),
        (BURSTGPT.replace("Log Type", "Kind"), "t: the column `Kind` is unknown; .*--columns"),
        (lines([chat(1, -1, 0, 40, 1, 2)]), "t, line 1: `hash_ids` must have 3 ids, one for each 16 of its 40"),
        (lines([chat(1, -1, 0, 1, 1) | {"chat_id": "x"}]), "t, line 1: `chat_id` must be an integer of 64 bits, got x"),
        (SERVEGEN.replace("input_tokens", "input_toks "), "t, line 2: `arrival_time_ns` must be .*got nothing"),
        (SERVEGEN.replace("timestamp", "time"), "the column `timestamp` is missing; the columns found are request_id, time"),
        (SERVEGEN.replace("\n1,", "\n0,"), "t, line 3: `request_id` must be unique"),
        (lines([{**LLMSERVINGSIM[1], "input_toks": 9}]), "t, line 1: `input_tok_ids` must be 9 integers, .*got 16"),
        (lines([LLMSERVINGSIM[2], {**LLMSERVINGSIM[0], "sub_requests": []}]), "t, line 2: `sub_requests` must be a list"),
        (lines([{**LLMSERVINGSIM[2], "arrival_time_ns": -1}]), "t, line 1: `arrival_time_ns` must be .*got -1"),
        (lines([{"arrival_time_ns": 0, "input_toks": 3}]), "t, line 1: `output_toks` must be an integer .*got nothing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    """Line, column, rule and what was got."""
    monkeypatch.chdir(tmp_path)
    Path("t").write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace("t")
