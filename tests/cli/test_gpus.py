"""`servecast gpus` as YAML and schema, profiles of ten lines, and `--price`."""

import json
import re
from pathlib import Path

import pytest
import yaml

from sim.specs.hardware import load_gpu
from tests.cli.conftest import Servecast

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "my-gpu.yaml"
ON_MI355X = ("Llama-3.1-8B", "--gpu", "mi355x")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as they are where the output is no terminal."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("name", ["H100", EXAMPLE])
def test_a_printed_profile_loads_as_the_same_gpu(servecast: Servecast, tmp_path: Path, name: str | Path) -> None:
    """By alias or path, complete or not."""
    status, out, err = servecast("gpus", name, "--yaml")
    assert (status, err) == (0, "")
    (tmp_path / "printed.yaml").write_text(out, encoding="utf-8")
    assert load_gpu(tmp_path / "printed.yaml") == load_gpu(name)


def test_the_example_of_the_docs_is_ten_lines_and_runs(servecast: Servecast, trace: Path) -> None:
    """What it leaves out is derived, and the forecast is no validated one."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) == 10
    status, out, _ = servecast("simulate", "Llama-3.1-8B", "--gpu", EXAMPLE, "--trace", trace, "--json")
    summary = json.loads(out)
    assert (status, summary["completed"], summary["gpu"]) == (0, 4, "example-96gb")
    assert summary["confidence"]["level"] == "extrapolated"
    assert summary["cost_usd"] == pytest.approx(summary["duration"] / 3600 * 2.4)
    assert "operators.gemm" in load_gpu(EXAMPLE).derived


def test_the_schema_names_every_key(servecast: Servecast) -> None:
    """As a table for people, as JSON Schema for editors; the same keys are required in both."""
    _, text, _ = servecast("gpus", "--schema")
    _, schema, _ = servecast("gpus", "--schema", "--json")
    whole = json.loads(schema)
    written = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert written.keys() <= whole["properties"].keys()
    required = {key.split(".")[0] for key in re.findall(r"^(\S+) +required", text, re.MULTILINE)}
    assert required == set(whole["required"])
    assert all(re.search(rf"^{key}[ .]", text, re.MULTILINE) for key in whole["properties"] if key != "calibration")
    assert max(map(len, text.splitlines())) <= 110


def test_the_table_says_whose_prices_they_are(servecast: Servecast) -> None:
    """Whose and of when, or that none is known."""
    _, out, _ = servecast("gpus")
    assert re.search(r"^h100-sxm .* 2\.69  RunPod, 2026-03-10$", out, re.MULTILINE)
    assert re.search(r"^mi355x .* -  none known$", out, re.MULTILINE)


def test_a_price_on_the_command_line_costs_a_simulation(servecast: Servecast, trace: Path) -> None:
    """In the summary, and in a sentence."""
    arguments = ("simulate", *ON_MI355X, "--trace", trace, "--json")
    _, free, _ = servecast(*arguments)
    _, out, err = servecast(*arguments, "--price", "2")
    summary = json.loads(out)
    assert json.loads(free)["cost_usd"] is None
    assert summary["cost_usd"] == pytest.approx(2 * summary["gpu_hours"])
    assert "GPU hours at $2.00" in err


def test_a_price_on_the_command_line_sizes_and_optimises(servecast: Servecast, trace: Path, linear: Path) -> None:
    """Where the profile has none: dollars an hour of `capacity`, cost as the objective of `optimize`."""
    limits = ("--slo", "ttft_p99=1s", "--step-time-model", linear, "--max-model-len", "2048", "--max-num-seqs", "1")
    _, out, _ = servecast("capacity", *ON_MI355X, "--trace", trace, *limits, "--price", "2", "--json")
    assert json.loads(out)["usd_per_hour"] == 2.0
    space = trace.with_name("space.yaml")
    space.write_text("max_num_seqs: [1, 8]\n", encoding="utf-8")
    status, out, _ = servecast(
        *("optimize", *ON_MI355X, "--trace", trace, "--space", space, "--executor", "serial"),
        *("--step-time-model", linear, "--objective", "cost", "--price", "2", "--json"),
    )
    assert status == 0
    assert json.loads(out)["best"]["metrics"]["usd_per_million_output_tokens"] > 0
