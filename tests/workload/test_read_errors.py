"""What cannot be read ends in one sentence that names the place, the rule, what was got and what to do."""

import gzip
import json
import re
from pathlib import Path

import pytest

from sim.errors import TraceError
from sim.workload.readers import read_trace

CSV = "arrival_s,prompt_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
STAMPS = AZURE + "2023-11-16 18:15:46.6805900,374,44\n"
ROW = {"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 1}
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


TEXTS = {
    "empty": ("", "t: the file is empty"),
    "blank": ("\n \n", "t: the file is empty"),
    "header only": (CSV, "t: there is a header and no request"),
    "azure header only": (AZURE, "t: there is a header and no request"),
    "no header": ("0,1,2\n", "t: the column `arrival_s` is missing; the columns found are 0, 1, 2"),
    "prose": ("hello world\n", "the column `arrival_s` is missing; the columns found are hello world"),
    "missing": (
        "arrival_s,prompt_tokens\n0,1\n",
        "the column `output_tokens` is missing; the columns found are arrival_s",
    ),
    "misspelt": (
        "arrival_s,promt_tokens,output_tokens\n0,1,1\n",
        "`prompt_tokens` is missing.*Did you mean promt_tokens",
    ),
    "unknown": ("arrival_s,prompt_tokens,output_tokens,prio\n0,1,1,1\n", "`prio` is unknown; .*Did you mean priority"),
    "azure missing": ("TIMESTAMP,ContextTokens\n", "the column `GeneratedTokens` is missing"),
    "azure extra": ("TIMESTAMP,ContextTokens,GeneratedTokens,x\n", "the column `x` is unknown"),
    "twice": ("arrival_s,arrival_s,prompt_tokens,output_tokens\n", "t, line 1: the column `arrival_s` stands twice"),
    "short row": (CSV + "0,1,1\n1,1\n", "t, line 3: a row must have 3 cells as the header has, got 2"),
    "long row": (CSV + "0,1,1,1\n", "t, line 2: a row must have 3 cells as the header has, got 4"),
    "open quote": (CSV + '0,1,"1\n', "t, line 2: not readable as CSV"),
    "limits that differ": (
        "arrival_s,prompt_tokens,output_tokens,slo_class,slo\n0,1,1,chat,ttft_p99=1s\n1,1,1,batch,\n2,1,1,chat,ttft_p99=2s\n",
        "t, line 4: `slo` must be one for all requests of a class, got ttft_p99=2000ms after ttft_p99=1000ms in 'chat'; name another class",
    ),
    "limits that are none": (
        "arrival_s,prompt_tokens,output_tokens,slo_class,slo\n0,1,1,chat,ttft_p99=1s;fast\n",
        "t, line 2: `slo` must look like ttft_p99=500ms: .*got 'fast'",
    ),
    "limits without a class": (
        "arrival_s,prompt_tokens,output_tokens,slo\n0,1,1,ttft_p99=1s\n",
        "t, line 1: `slo` means nothing without `slo_class`",
    ),
    "no class": (
        "arrival_s,prompt_tokens,output_tokens,slo_class\n0,1,1,\n",
        "t, line 2: `slo_class` must be a name or an integer, got nothing",
    ),
    "nan time": (CSV + "0,1,1\nnan,1,1\n", "t, line 3: `arrival_s` must be a finite number of seconds.*got nan"),
    "inf time": (CSV + "inf,1,1\n", "t, line 2: `arrival_s` must be a finite .*got inf"),
    "negative time": (CSV + "-1,1,1\n", "t, line 2: `arrival_s` must be .* from 0 to 1e\\+10, got -1"),
    "milliseconds": (CSV + "1700000000000,1,1\n", "t, line 2: `arrival_s` must be .* from 0 to 1e\\+10, got 17"),
    "time with _": (CSV + "1_0,1,1\n", "t, line 2: `arrival_s` .*got 1_0"),
    "no time": (CSV + ",1,1\n", "t, line 2: `arrival_s` .*got nothing"),
    "word time": (CSV + "\n\nsoon,1,1\n", "t, line 4: `arrival_s` .*got soon"),
    "zero length": (CSV + "0,0,1\n", "t, line 2: `prompt_tokens` must be an integer from 1 to 2,147,483,647, got 0"),
    "negative length": (CSV + "0,1,-5\n", "t, line 2: `output_tokens` must be an integer .*got -5"),
    "float length": (CSV + "0,1,2.5\n", "`output_tokens` must be an integer .*got 2.5"),
    "ten billion": (CSV + "0,10000000000,1\n", "`prompt_tokens` must be an integer .*got 10000000000"),
    "past 2^53": (CSV + "0,9007199254740993,1\n", "`prompt_tokens` must be an integer .*got 9007199254740993"),
    "5,000 digits": (CSV + f"0,{'9' * 5000},1\n", "`prompt_tokens` must be an integer .*got 9{40}\\.\\.\\.;"),
    "length with _": (CSV + "0,1_000,1\n", "`prompt_tokens` must be an integer .*got 1_000"),
    "other digits": (CSV + "0,\u0661,1\n", "`prompt_tokens` must be an integer .*got \u0661"),
    "no length": (CSV + "0,,1\n", "`prompt_tokens` must be an integer .*got nothing"),
    "unsorted": (
        CSV + "0,1,1\n5,1,1\n\n4.5,1,1\n",
        "t, line 5: requests must stand in order of arrival, got one 0.5 s before that of line 3",
    ),
    "same id": (
        "request_id," + CSV + "a,0,1,1\nb,0,1,1\na,0,1,1\n",
        "t, line 4: `request_id` must be unique, got 'a' as in line 2",
    ),
    "no id": ("request_id," + CSV + ",0,1,1\n", "t, line 2: `request_id` must be a name or an integer, got nothing"),
    "no answer": (CSV.strip() + ",n\n0,1,1,1\n0,1,1,0\n", "t, line 3: `n` must be an integer from 1 to 16,384, got 0"),
    "half an answer": (jsonl(ROW | {"n": 1.5}), "t, line 1: `n` must be an integer from 1 to 16,384, got 1.5"),
    "priority": ("priority," + CSV + "high,0,1,1\n", "`priority` must be an integer of 64 bits, got high"),
    "ids in words": ("hash_ids," + CSV + "x y,0,1,1\n", "t, line 2: `hash_ids` must be a list of integers .*got x y"),
    "ids cut": ("hash_ids," + CSV + '"[1, 2",0,20,1\n', "t, line 2: `hash_ids` must be a list of integers"),
    "ids negative": (
        "hash_ids," + CSV + "1 -2,0,20,1\n",
        "t, line 2: `hash_ids` must be a list of integers of at least 0",
    ),
    "id of 65 bits": ("hash_ids," + CSV + f"{2**64},0,1,1\n", "`hash_ids` must be a list of integers .* 64 bits"),
    "id of 5,000 digits": ("hash_ids," + CSV + f"{'9' * 5000},0,1,1\n", "`hash_ids` must be a list of integers"),
    "60,000 brackets": (
        "hash_ids," + CSV + f"{'[' * 60_000},0,1,1\n",
        "t, line 2: `hash_ids` must be a list of integers",
    ),
    "too few ids": (
        "hash_ids," + CSV + "1,0,20,1\n",
        "t, line 2: `hash_ids` must have 2 ids, one for each 16 of its 20",
    ),
    "block size 0": ("hash_ids,hash_block_size," + CSV + "1,0,0,1,1\n", "`hash_block_size` must be an integer from 1"),
    "block size alone": ("hash_block_size," + CSV + "1,0,1,1\n", "`hash_block_size` means nothing without `hash_ids`"),
    "stamp": (
        AZURE + "yesterday,1,1\n",
        "t, line 2: `TIMESTAMP` must be a time like 2023-11-16 18:15:46.6805900, got yesterday",
    ),
    "61st second": (STAMPS + "2023-11-16 18:15:61.6805900,1,1\n", "t, line 3: `TIMESTAMP` must be a time .*:61.68"),
    "a letter": (STAMPS + "2023-11-16 18:15:46.68059x0,1,1\n", "t, line 3: `TIMESTAMP` must be a time .*059x0"),
    "a semicolon": (STAMPS + "2023-11-16 18:15:46;6805900,1,1\n", "t, line 3: `TIMESTAMP` must be a time .*46;68"),
    "no such minute": (STAMPS + "2023-11-16 18:60:46.6805900,1,1\n", "t, line 3: `TIMESTAMP` must be a time"),
    "no such day": (AZURE + "2023-02-30 00:00:00.0,1,1\n", "t, line 2: `TIMESTAMP` must be a time"),
    "year 1500": (AZURE + "1500-02-28 00:00:00.0,1,1\n", "t, line 2: `TIMESTAMP` must be a time .*years 1685 to 2254"),
    "year 2300": (STAMPS + "2300-02-28 00:00:00.0000000,1,1\n", "t, line 3: `TIMESTAMP` must be a time .*got 2300"),
    "azure unsorted": (
        AZURE + "2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,1,1\n",
        "t, line 3: requests must stand in order",
    ),
    "azure zero": (AZURE + "2023-11-16 18:00:01,1,0\n", "t, line 2: `GeneratedTokens` must be an integer from 1"),
    "array cut": (
        "[\n" + json.dumps(ROW) + ",\n",
        "t, item 2: must be a complete JSON object, got nothing; write an array",
    ),
    "array item cut": ("[" + json.dumps(ROW)[:-3], "t, item 1: must be a complete JSON object, got one that is not"),
    "array of numbers": ("[7]", "t, item 1: must be a JSON object, got int"),
    "array without commas": (
        "[" + 2 * json.dumps(ROW) + "]",
        "t, item 1: must be followed by a comma or the end of the array",
    ),
    "array and more": ("[" + json.dumps(ROW) + "] x", "t, item 1: must be the last thing in the file"),
    "empty array": (" [ ]", "t: the array is empty; a trace needs at least one request"),
    "array of unlike rows": (json.dumps([ROW, ROW | {"x": 1}]), "t, item 2: every object must have the keys .*has `x`"),
    "array of bad rows": (json.dumps([ROW, ROW | {"output_tokens": 0}]), "t, item 2: `output_tokens` must be .*got 0"),
    "truncated": (jsonl(ROW) + '{"arrival_s": 1, "pro', "t, line 2: not a complete JSON object"),
    "pretty": (json.dumps(ROW, indent=1), "t, line 1: not a complete JSON object"),
    "two on a line": (jsonl(ROW) + json.dumps(ROW) + "," + json.dumps(ROW), "t, line 2: not a complete JSON object"),
    "one on two lines": (jsonl(ROW) + '{"arrival_s": [1\n2]}\n', "t, line 2: not a complete JSON object"),
    "array line": (jsonl(ROW, [1]), "t, line 2: a line must be a JSON object, got list"),
    "deep": ('{"a":' * 100_000, "t, line 1: not a complete JSON object"),
    "mixed": (
        jsonl(ROW, MOONCAKE),
        "t, line 2: every object must have the keys of the first one, and this one lacks `arrival_s`",
    ),
    "extra key": (jsonl(ROW, ROW | {"zz": 1}), "t, line 2: .* this one has `zz`"),
    "json unknown": (jsonl(ROW | {"sesion_id": 1}), "`sesion_id` is unknown.*Did you mean session_id"),
    "json nan": (jsonl(ROW | {"arrival_s": float("nan")}), "t, line 1: `arrival_s` must be a finite .*got nan"),
    "json huge time": (jsonl(ROW | {"arrival_s": 10**400}), "t, line 1: `arrival_s` must be a finite"),
    "json text time": (jsonl(ROW, ROW | {"arrival_s": "x"}), "t, line 2: `arrival_s` must be a finite .*got x"),
    "json bool": (jsonl(ROW | {"output_tokens": True}), "t, line 1: `output_tokens` must be an integer .*got True"),
    "json float": (jsonl(ROW | {"output_tokens": 5.0}), "t, line 1: `output_tokens` must be an integer .*got 5.0"),
    "json null": (jsonl(ROW | {"output_tokens": None}), "t, line 1: `output_tokens` must be an integer .*got nothing"),
    "json bool time": (jsonl(ROW | {"arrival_s": True}), "t, line 1: `arrival_s` must be a finite .*got True"),
    "json ids float": (jsonl(ROW | {"hash_ids": [1.0, 2]}), "t, line 1: `hash_ids` must be a list of integers"),
    "json ids empty": (jsonl(ROW | {"hash_ids": []}), "t, line 1: `hash_ids` must be a list of integers .*got \\[\\]"),
    "json id of 65 bits": (jsonl(ROW | {"hash_ids": [1, 2**63]}), "t, line 1: `hash_ids` must be a list of integers"),
    "json 5,000 digits": ('{"arrival_s": ' + "9" * 5000 + "}", "t, line 1: not a complete JSON object"),
    "lone surrogate": (jsonl(ROW | {"request_id": "\ud800"}), r"`request_id` must be a name .*got \\ud800"),
    "lone surrogate key": (jsonl(ROW | {"\ud800": 1}), "is unknown"),
    "deep cell": (jsonl(ROW)[:-2] + ', "session_id": ' + "[" * 900 + "]" * 900 + "}", "`session_id` must be a name"),
    "think alone": (jsonl(ROW | {"think_time_s": 1}), "t, line 1: `think_time_s` means nothing without `session_id`"),
    "think nan": (
        jsonl(ROW | {"session_id": 1, "think_time_s": float("nan")}),
        "t, line 1: `think_time_s` must be a finite number of seconds .*got nan",
    ),
    "negative think": (jsonl(ROW | {"session_id": 1, "think_time_s": -1}), "`think_time_s` must be .*from 0 .*got -1"),
    "a line's limit": (
        jsonl(ROW | {"max_concurrency": 4}, ROW | {"max_concurrency": 5}),
        "t, line 2: `max_concurrency` must be one in all requests of a `stage` and `line`, got 5 after 4 in line 1",
    ),
    "line without limit": (jsonl(ROW | {"line": 4}), "`line` means nothing without `max_concurrency`"),
    "stages back": (jsonl(ROW | {"stage": 1}, ROW | {"stage": 0}), "t, line 2: `stage` must not fall .*got 0 after 1"),
    "json id list": (jsonl(ROW | {"request_id": ["a"]}), "t, line 1: `request_id` must be a name or an integer"),
    "mooncake missing": (
        jsonl({"timestamp": 0, "input_length": 1, "output_length": 1}),
        "the column `hash_ids` is missing",
    ),
    "mooncake ids": (
        jsonl(MOONCAKE, MOONCAKE | {"hash_ids": [1]}),
        "t, line 2: `hash_ids` must have 2 ids, one for each 512 of its 600",
    ),
    "mooncake time": (
        jsonl(MOONCAKE | {"timestamp": -1}),
        "t, line 1: `timestamp` must be a finite number of milliseconds from 0 to 1e\\+13",
    ),
}

DATA = {
    "binary": (bytes(range(256)) * 4, "t: a trace must be CSV, JSON lines or Parquet, got binary data"),
    "utf-16": ((CSV + "0,1,1\n").encode("utf-16"), "got binary data \\(or UTF-16\\); save it as UTF-8"),
    "latin-1": (
        ("request_id," + CSV + "caf\u00e9,0,1,1\n").encode("latin-1"),
        "t, line 2: text must be UTF-8, got the byte 0xe9",
    ),
    "latin-1 far down": (
        (CSV + "0,1,1\n" * 30_000).encode() + b"\xe9,1,1\n",
        "t, line 30002: text must be UTF-8, got the byte 0xe9",
    ),
    "gzip cut": (gzip.compress((CSV + "0,1,1\n" * 999).encode())[:-12], "t: the gzip data is damaged or cut short"),
    "gzip broken": (b"\x1f\x8b" + b"x" * 99, "t: the gzip data is damaged or cut short"),
    "array not UTF-8": (b'[{"a": "\xe9"}]', "t: text must be UTF-8"),
    "bad parquet": (b"PAR1" + b"\0" * 99, "t: not readable as Parquet"),
}

COMPRESSED = {
    "empty": ("", "", 0, "t: the file is empty"),
    "line": ("", "x", 2**25, "t: must have no more than 16 MiB in a line; is it a trace"),
    "quoted": (CSV + '"', "x", 2**25, "t: must have no more than 16 MiB in a line"),
    "blank": ("", "\n", 2**25, "t: the file is empty"),
    "blank end": (CSV, "\n", 2**22, "t: must have no more than 1,048,576 blank lines"),
    "item": ('["', "x", 2**25, "t, item 1: must be a complete JSON object"),
    "pretty": ("", "{\n", 2**23, "t, line 1: not a complete JSON object"),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS.keys())
def test_bad_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    """Text that is no trace is refused by one sentence."""
    refused(tmp_path, monkeypatch, text.encode(), message)


@pytest.mark.parametrize(("data", "message"), DATA.values(), ids=DATA.keys())
def test_bad_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str) -> None:
    """Files that are not text, or not whole, are refused by one sentence."""
    refused(tmp_path, monkeypatch, data, message)


@pytest.mark.parametrize(("start", "then", "times", "message"), COMPRESSED.values(), ids=COMPRESSED.keys())
def test_what_swells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, then: str, times: int, message: str
) -> None:
    """A small compressed file is refused for what is in it."""
    refused(tmp_path, monkeypatch, gzip.compress((start + then * times).encode(), compresslevel=1), message)


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str) -> None:
    (folder / "t").write_bytes(data)
    monkeypatch.chdir(folder)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace("t")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert re.search(r"[.?]$", sentence), sentence
    assert len(sentence) < 400


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    """A folder is named as such."""
    with pytest.raises(TraceError, match="a trace must be a file, got a folder"):
        read_trace(tmp_path)


@pytest.mark.parametrize("name", ["chta.csv", "x" * 5000, "no/such/folder/t.csv", ""])
def test_a_missing_file_names_the_bundled_ones(name: str) -> None:
    """Whatever does not exist lists what could have been meant."""
    with pytest.raises(
        TraceError,
        match=r"there is no such file; the bundled traces and workloads are agentic, .*, chat, |got a folder",
    ):
        read_trace(name)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    """A slip in a file name finds the file beside it."""
    (tmp_path / "production.csv").touch()
    with pytest.raises(TraceError, match=r"Did you mean .*production\.csv"):
        read_trace(tmp_path / "prodution.csv")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optional dependency is named with the way to get it."""
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "t").write_bytes(b"PAR1")
    with pytest.raises(TraceError, match=r"reading Parquet needs pyarrow; install `servecast\[parquet\]`"):
        read_trace(tmp_path / "t")
