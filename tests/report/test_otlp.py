"""Spans as vLLM exports them: the rules of OTLP's JSON, and there and back again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from sim.report import otlp
from tests import results

HEX = set("0123456789abcdef")


def spans(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The replica and the span, line by line."""
    return [
        (next(one["value"]["stringValue"] for one in of["resource"]["attributes"] if one["key"] == "service.instance.id"), span)
        for line in path.read_text(encoding="utf-8").splitlines()
        for of in json.loads(line)["resourceSpans"]
        for scope in of["scopeSpans"]
        for span in scope["spans"]
    ]  # fmt: skip


def test_a_span_says_of_a_request_what_vllm_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identities are hexadecimal and of their lengths, 64-bit integers are text; a line has so many spans at most."""
    monkeypatch.setattr(otlp, "SPANS_A_LINE", 7)
    run = results.fleet()
    run.write_otlp(tmp_path / "spans.jsonl", start_s=1000.0)
    found = spans(tmp_path / "spans.jsonl")
    done = run.requests[run.requests["finish_s"].notna()].set_index("request_id")
    assert len(found) == len(done)
    assert len((tmp_path / "spans.jsonl").read_text().splitlines()) == -(-len(done) // 7)
    assert len({(span["traceId"], span["spanId"]) for _, span in found}) == len(found)
    first_s = run.requests["arrival_s"].iloc[0]
    for replica, span in found:
        told = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
        row = done.loc[told["gen_ai.request.id"]]
        assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
        assert set(span["traceId"] + span["spanId"]) <= HEX
        assert int(replica) == row["replica"]
        assert int(span["startTimeUnixNano"]) == pytest.approx(1e12 + (row["arrival_s"] - first_s) * 1e9, abs=200)
        assert int(span["endTimeUnixNano"]) == pytest.approx(1e12 + (row["finish_s"] - first_s) * 1e9, abs=200)
        assert told["gen_ai.usage.prompt_tokens"] == str(row["prompt_tokens"])
        assert told["gen_ai.latency.time_to_first_token"] * 1000 == pytest.approx(row["ttft_ms"])
        assert told["gen_ai.latency.e2e"] * 1000 == pytest.approx(row["e2el_ms"])
        parts = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode")
        assert sum(told[f"gen_ai.latency.{part}"] for part in parts) == pytest.approx(told["gen_ai.latency.e2e"])


def test_a_trace_goes_there_and_comes_back(tmp_path: Path) -> None:
    """Names, lengths, and arrivals to the nanosecond; requests that did not finish have no span."""
    trace = sim.read_trace("chat", limit=30)
    engine = sim.EngineConfig(max_model_len=3000)
    run = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, intervals=False)
    run.write_otlp(tmp_path / "spans.jsonl")
    rows = np.flatnonzero(run.requests["finish_s"].notna())
    served = trace.rows(rows)
    again = sim.read_trace(tmp_path / "spans.jsonl")
    assert run.summary["rejected"] > 0
    assert list(again.request_id) == list(served.request_id)
    assert again.prompt_tokens.tolist() == served.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == run.records.requests.generated_tokens[rows].tolist()
    np.testing.assert_allclose(again.arrival_s, served.arrival_s - served.arrival_s[0], atol=2e-9)
