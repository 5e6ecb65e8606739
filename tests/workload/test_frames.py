"""A DataFrame is a trace, held to the rules of a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.errors import TraceError
from sim.workload.readers import as_trace, read_trace

ROWS = {"arrival_s": [0.0, 0.5, 2.0], "prompt_tokens": [10, 20, 30], "output_tokens": [1, 2, 3]}


def test_a_frame_is_read_as_its_file_would_be(tmp_path: Path) -> None:
    """All columns, in all formats' names; the index does not matter."""
    frame = pd.DataFrame({**ROWS, "session_id": ["a", "a", "b"], "priority": [1, 2, 3]}, index=[7, 7, 9])
    frame.to_csv(tmp_path / "t.csv", index=False)
    there, here = read_trace(tmp_path / "t.csv"), read_trace(frame)
    for name in ("request_id", "session_id"):
        assert getattr(there, name) == getattr(here, name)
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "priority"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    assert here.source == "DataFrame"


def test_time_stamps_and_mixed_columns_are_understood() -> None:
    """Azure's columns with pandas' time stamps; block ids as lists and as arrays, numbers as numpy's."""
    stamps = pd.to_datetime(["2023-11-16 18:15:46.680590", "2023-11-16 18:15:50.990"])
    azure = pd.DataFrame({"TIMESTAMP": stamps, "ContextTokens": [5, 6], "GeneratedTokens": [1, 2]})
    assert read_trace(azure).arrival_s.tolist() == [0.0, 4.30941]
    mixed = pd.DataFrame(ROWS | {"hash_ids": [[1], np.array([1, 2]), [3, 4]]}).astype({"prompt_tokens": object})
    mixed.at[0, "prompt_tokens"] = np.int64(10)  # noqa: PD008 - one cell of one type
    assert read_trace(mixed).segments == (((1, 10),), ((1, 16), (2, 4)), ((3, 16), (4, 14)))


def test_limit_and_rate_shape_a_frame_too() -> None:
    """Two requests at 4 a second."""
    assert as_trace(pd.DataFrame(ROWS), limit=2, request_rate=4.0).arrival_s.tolist() == [0.0, 0.5]


def test_a_frame_can_be_simulated() -> None:
    """The same as its file."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", pd.DataFrame(ROWS))
    assert (result.summary["completed"], result.summary["trace"]) == (3, "DataFrame")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda frame: frame.assign(prompt_tokens=[1, None, 2]),
            "DataFrame, row 1: `prompt_tokens` must be an integer",
        ),
        (lambda frame: frame.assign(arrival_s=[0.0, 2.0, 1.0]), "DataFrame, row 3: requests must stand in order"),
        (lambda frame: frame.iloc[:0], "DataFrame: there is a header and no request"),
        (lambda frame: pd.concat([frame, frame], axis=1), "the column `arrival_s` is there twice"),
        (lambda frame: frame.drop(columns="arrival_s"), "the column `arrival_s` is missing"),
        (lambda frame: frame.assign(ttft_ms=1.0), "the column `ttft_ms` is unknown"),
        (lambda frame: frame.to_dict(), "must be a path, a Trace, a workload or a DataFrame, got dict"),
    ],
)
def test_what_is_no_trace_is_refused(change: Callable[[pd.DataFrame], Any], problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_trace(change(pd.DataFrame(ROWS)))
