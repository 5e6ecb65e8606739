"""A workload, as a file, by name or in memory, wherever a trace is asked for."""

from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.search import entry
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.space import Space
from sim.workload.generate import generate
from sim.workload.lengths import Fixed
from sim.workload.load import trace_sha256
from sim.workload.named import named_workload
from sim.workload.readers import as_trace
from sim.workload.spec import WorkloadMix, WorkloadSpec
from tests.search.makers import STEPS, gpu, model

SMALL = WorkloadSpec(40, 20.0, prompt_tokens=Fixed(50), output_tokens=Fixed(9))
FILE = "num_requests: 40\nrequest_rate: 20\nprompt_tokens: 50\noutput_tokens: 9\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The same workload as a file."""
    found = tmp_path / "small.yaml"
    found.write_text(FILE)
    return found


def test_simulate_takes_files_specs_mixes_and_profiles(path: Path) -> None:
    """Requests are drawn with the seed of the run; the same workload is the same load, whatever it comes as."""
    how: dict[str, Any] = {"step_time_model": STEPS, "intervals": False, "seed": 3}
    found = [sim.simulate(model(), gpu(), given, **how).summary for given in (path, str(path), SMALL)]
    assert {one["trace_sha256"] for one in found} == {trace_sha256(generate(SMALL, 3))}
    mixed = WorkloadMix((WorkloadSpec(3, name="a"), WorkloadSpec(4, name="b")))
    assert sim.simulate(model(), gpu(), mixed, **how).summary["completed"] == 7
    profile = sim.WorkloadProfile.create_synthetic("interactive", requests_per_second=5)
    assert sim.simulate(model(), gpu(), profile, limit=9, **how).summary["completed"] == 9


def test_a_search_takes_a_profile_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its space is that of the profile, not of an analysis of what is drawn from it; capacity takes one too."""
    profile = sim.WorkloadProfile(20.0, {3: 1.0}, {64: 1.0}, "throughput", 1000)
    derived_from: list[object] = []

    def space(_scenario: object, workload: object, **_options: object) -> Space:
        derived_from.append(workload)
        return Space({"max_num_seqs": (1, 8)})

    monkeypatch.setattr(entry, "default_space", space)
    how: dict[str, Any] = {"engine": sim.EngineConfig(max_model_len=4096), "step_time_model": STEPS, "intervals": False}
    assert sim.optimize(model(), gpu(), profile, limit=30, **how).best["engine"]["max_num_seqs"] == 8
    assert derived_from == [profile]
    assert sim.capacity(model(), gpu(), profile, limit=30, slo=["ttft_p99=1s"], **how).summary["max_request_rate"] > 0


def test_only_tables_have_columns() -> None:
    """A workload has none to name."""
    with pytest.raises(ConfigError, match="`columns` and `tokenizer` are for files and DataFrames, got a WorkloadSpec"):
        as_trace(SMALL, columns={"arrival": "t", "prompt": "p", "output": "o"})


def test_each_named_workload_has_a_profile() -> None:
    """Those of the design as it has them, the others as an analysis of their trace says."""
    rag = WorkloadProfile.create_synthetic("rag")
    assert rag == WorkloadProfile.from_trace_analysis(generate(named_workload("rag").workload))
    assert WorkloadProfile.create_synthetic("rag", 7, 8).latency_budget_ms == 8
