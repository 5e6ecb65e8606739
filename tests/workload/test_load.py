"""The fingerprint of a trace follows its requests, not its file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.workload.load import trace_sha256
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from sim.workload.writers import write_trace
from tests.workload.makers import make_trace

SHARING = make_trace(
    segments=(((7, 16), (8, 16)), ((7, 16), (9, 4)), ((10, 16),)), session_id=("a", "b", "a"), priority=np.array([0, 1, 0])
)  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl", ".parquet"])
def test_the_same_requests_have_the_same_fingerprint_in_any_format(tmp_path: Path, suffix: str) -> None:
    """Written and read again, and with the first block's size of a longer prompt."""
    path = tmp_path / f"trace{suffix}"
    write_trace(SHARING, path)
    assert trace_sha256(read_trace(path)) == trace_sha256(SHARING)


def test_a_mooncake_file_and_its_conversion_have_the_same_fingerprint(tmp_path: Path) -> None:
    """Milliseconds become seconds; nothing else of the format is left."""
    original, converted = tmp_path / "mooncake.jsonl", tmp_path / "native.csv"
    original.write_text('{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]}\n')
    write_trace(read_trace(original), converted)
    assert trace_sha256(read_trace(original)) == trace_sha256(read_trace(converted))


@pytest.mark.parametrize(
    "other",
    [
        replace(SHARING, arrival_s=SHARING.arrival_s / 2),
        replace(SHARING, prompt_tokens=SHARING.prompt_tokens + 1),
        replace(SHARING, output_tokens=SHARING.output_tokens + 1),
        replace(SHARING, priority=None),
        replace(SHARING, n=np.array([1, 2, 1])),
        replace(SHARING, session_id=("a", "b", "b")),
        replace(SHARING, segments=None),
        replace(SHARING, segments=(((7, 16), (8, 16)), ((6, 16), (9, 4)), ((10, 16),))),
        SHARING.first(2),
    ],
)
def test_whatever_changes_a_replay_changes_the_fingerprint(other: Trace) -> None:
    """Times, lengths, order of importance, sessions, sharing, and how many."""
    assert trace_sha256(other) != trace_sha256(SHARING)


def test_names_of_requests_and_files_are_not_part_of_it() -> None:
    """They change no schedule."""
    renamed = replace(SHARING, request_id=("x", "y", "z"), source="elsewhere.csv", format="mooncake")
    assert trace_sha256(renamed) == trace_sha256(SHARING)
