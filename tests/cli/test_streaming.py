"""`servecast simulate --stream`."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Servecast


def test_a_stream_prints_its_figures_and_what_its_file_leaves_open(servecast: Servecast, tmp_path: Path) -> None:
    """The row that failed is left out, and said once; so is how many prompts are too long."""
    path = tmp_path / "log.csv"
    path.write_text("ts,in,out\n1,20,5\n2,30,0\n3,900,5\n4,40,5\n")
    columns = ("--columns", "arrival=ts,prompt=in,output=out")
    told = servecast(
        "simulate",
        "Llama-3.1-8B",
        "--gpu",
        "h100-sxm",
        "--trace",
        path,
        *columns,
        "--stream",
        "--json",
        "--max-model-len",
        "500",
    )
    assert told.status == 0
    summary = json.loads(told.out)
    assert (summary["completed"], summary["rejected"], summary["trace"]) == (2, 1, str(path))
    assert summary["streamed"]["percentile_error"] == 0.001
    assert told.err.count("1 of its lines, with no `out` (they failed), is left out.") == 1
    assert "1 of 3 requests were rejected, the first for a prompt of 900 tokens leaves no room" in told.err


@pytest.mark.parametrize("flag", ["--out", "--step-log"])
def test_what_takes_all_of_a_run_is_refused(servecast: Servecast, trace: Path, tmp_path: Path, flag: str) -> None:
    told = servecast(
        "simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--stream", flag, tmp_path / "x"
    )
    assert told.status == 2
    assert f"{flag} needs the requests and steps of a run, which --stream does not keep" in told.err
