"""Adapters in traces: who asks for which, and that equal prompts under different ones are not shared."""

from pathlib import Path

import pytest

from sim.errors import TraceError
from sim.workload.adapters import adapter_numbers, num_adapters
from sim.workload.generate import generate
from sim.workload.lengths import Geometric
from sim.workload.load import trace_sha256
from sim.workload.readers import read_trace
from sim.workload.reuse import reusable_tokens
from sim.workload.spec import WorkloadSpec
from tests.workload.makers import make_trace

HEADER = "arrival_s,prompt_tokens,output_tokens,lora_name"


def test_an_empty_cell_is_the_base_model(tmp_path: Path) -> None:
    """Adapters are numbered as they come."""
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}\n0,16,4,sql\n1,16,4,\n2,16,4,chat\n3,16,4,sql\n")
    trace = read_trace(path)
    assert trace.lora_name == ("sql", "", "chat", "sql")
    assert adapter_numbers(trace.lora_name).tolist() == [1, 0, 2, 1]
    assert num_adapters(trace) == 2


def test_equal_prompts_under_other_adapters_share_nothing() -> None:
    """Of four equal prompts of 64 tokens, two under each of two adapters, two are found: 48 tokens each, never the last."""
    segments = [((7, 32), (8, 32))] * 4
    assert reusable_tokens(make_trace([0, 1, 2, 3], segments=segments)) == 3 * 48
    assert reusable_tokens(make_trace([0, 1, 2, 3], segments=segments, lora_name=("a", "b", "b", "a"))) == 2 * 48


def test_a_session_keeps_its_adapter() -> None:
    """Its turns repeat each other, which is KV of one adapter."""
    with pytest.raises(TraceError, match="must be one in all turns of a session, got 'a' and 'b' in 's'"):
        make_trace([0, 1], session_id=("s", "s"), lora_name=("a", "b"))


def test_generated_sessions_ask_for_the_modules_given() -> None:
    """Everything else stays as it was without them."""
    spec = WorkloadSpec(num_requests=200, turns=Geometric(2.0))
    plain, adapted = (
        generate(spec),
        generate(WorkloadSpec(num_requests=200, turns=Geometric(2.0), lora_modules=("a", "b"))),
    )
    assert plain.lora_name is None
    assert adapted.lora_name is not None
    assert set(adapted.lora_name) == {"a", "b"}
    assert adapted.arrival_s.tolist() == plain.arrival_s.tolist()
    assert trace_sha256(adapted) != trace_sha256(plain)
