"""Requests as OpenTelemetry spans, as vLLM's `--otlp-traces-endpoint` exports them: OTLP in JSON, a line for each export.

The span `llm_request` and its attributes are those of vllm/tracing and v1/engine/output_processor.py (0.33), without what a simulated
request has not, such as a temperature. Lines are those of the OpenTelemetry Collector's file exporter, of as many spans as its SDKs send at once.
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import Ints
from sim.outputs import writing
from sim.report.open_metrics import START_S
from sim.workload.trace import Trace

SPANS_A_LINE = 512  # max_export_batch_size of BatchSpanProcessor
SERVER = 2  # SPAN_KIND_SERVER
NS_PER_S = 1_000_000_000
Json = dict[str, Any]


def write_otlp(path: Path, run: ClusterRecords, trace: Trace, *, model_name: str, start_s: float = START_S) -> None:
    """The file appears when it is whole; the first request arrives at the Unix time `start_s`. Raises ConfigError where it cannot be written."""
    finish_s = run.merged.requests.finish_s
    ended = np.flatnonzero(np.isfinite(finish_s))
    rows = ended[np.argsort(finish_s[ended], kind="stable")]
    begin_ns = round(start_s * NS_PER_S)
    with writing(path, "--otlp-traces") as place, place.open("w", encoding="utf-8", newline="\n") as file:
        for first in range(0, len(rows), SPANS_A_LINE):
            line = _export(rows[first : first + SPANS_A_LINE], run, trace, model_name, begin_ns)
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")


def _export(rows: Ints, run: ClusterRecords, trace: Trace, model_name: str, begin_ns: int) -> Json:
    """Each replica is a resource of its own."""
    by_replica: dict[int, list[Json]] = {}
    for row in rows.tolist():
        by_replica.setdefault(int(run.replica[row]), []).append(_span(row, run, trace, begin_ns))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": list(_attributes(_server(model_name, replica)))},
                "scopeSpans": [{"scope": {"name": "vllm.llm_engine"}, "spans": spans}],
            }
            for replica, spans in sorted(by_replica.items())
        ]
    }


def _server(model_name: str, replica: int) -> Json:
    return {"service.name": "vllm", "service.instance.id": str(replica), "gen_ai.response.model": model_name}


def _span(row: int, run: ClusterRecords, trace: Trace, begin_ns: int) -> Json:
    requests = run.merged.requests
    columns = (requests.arrival_s, requests.first_scheduled_s, requests.first_token_s, requests.finish_s)
    arrival_s, scheduled_s, first_s, finish_s = (float(column[row]) for column in columns)
    name, since_s = trace.request_id[row], float(requests.arrival_s[0])
    identity = blake2b(f"{begin_ns} {row} {name}".encode(), digest_size=24).hexdigest()
    told = {
        "gen_ai.latency.time_to_first_token": first_s - arrival_s,
        "gen_ai.latency.e2e": finish_s - arrival_s,
        "gen_ai.latency.time_in_queue": scheduled_s - arrival_s,
        "gen_ai.usage.prompt_tokens": int(requests.prompt_tokens[row]),
        "gen_ai.usage.completion_tokens": int(requests.generated_tokens[row]),
        "gen_ai.latency.time_in_model_prefill": first_s - scheduled_s,
        "gen_ai.latency.time_in_model_decode": finish_s - first_s,
        "gen_ai.latency.time_in_model_inference": finish_s - scheduled_s,
        "gen_ai.request.id": name,
        "gen_ai.request.max_tokens": int(requests.output_tokens[row]),
        "gen_ai.request.n": 1 if trace.n is None else int(trace.n[row]),
    }
    return {
        "traceId": identity[:32],
        "spanId": identity[32:],
        "name": "llm_request",
        "kind": SERVER,
        "startTimeUnixNano": str(begin_ns + round((arrival_s - since_s) * NS_PER_S)),
        "endTimeUnixNano": str(begin_ns + round((finish_s - since_s) * NS_PER_S)),
        "attributes": list(_attributes(told)),
        "status": {},
    }


def _attributes(values: Json) -> Iterator[Json]:
    """Integers are text in OTLP's JSON, which has no numbers of 64 bits."""
    for key, value in values.items():
        if isinstance(value, str):
            yield {"key": key, "value": {"stringValue": value}}
        elif isinstance(value, int):
            yield {"key": key, "value": {"intValue": str(value)}}
        else:
            yield {"key": key, "value": {"doubleValue": value}}
