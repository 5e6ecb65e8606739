"""What servers and load generators wrote down, read as the trace of what was sent."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from tests.workload.makers import piped

START_NS = 1_790_341_371_953_418_752


def span(name: str, at_ns: int, identity: str, parent: str = "", **attributes: Any) -> dict[str, Any]:
    """A span; attributes as OTLP's JSON has them."""
    kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
    values = [
        {
            "key": f"gen_ai.{key.replace('__', '.')}",
            "value": {kinds[type(value)]: str(value) if type(value) is int else value},
        }
        for key, value in attributes.items()
    ]
    return {
        "traceId": "t", "spanId": identity, "parentSpanId": parent, "name": name,
        "startTimeUnixNano": str(START_NS + at_ns), "endTimeUnixNano": str(START_NS + at_ns + 10**9), "attributes": values,
    }  # fmt: skip


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


GATEWAY = span("chat", 0, "g1", usage__input_tokens=14, usage__output_tokens=8)
ROUTED = span("route", 1_000_000, "h1", "g1")
FIRST = span(
    "llm_request",
    2_500_000,
    "v1",
    "h1",
    request__id="a",
    usage__prompt_tokens=14,
    usage__completion_tokens=8,
    latency__e2e=0.25,
)
SECOND = span("llm_request", 1_002_500_000, "v2", request__id="b", usage__prompt_tokens=30, usage__completion_tokens=2)
ABORTED = span("llm_request", 2_000_000_000, "v3", request__id="c", usage__prompt_tokens=9, usage__completion_tokens=0)

PARAMS = "SamplingParams(n=1, temperature=0.7, stop=[], ignore_eos={}, max_tokens={}, min_tokens=0, logprobs=None)"
OLD_LOG = f"""INFO 12-31 23:59:58 api_server.py:219] vLLM API server version 0.6.3
INFO 12-31 23:59:59 logger.py:36] Received request cmpl-1-0: prompt: 'a, prompt_token_ids: [1], lora', params: {PARAMS.format(True, 64)}, prompt_token_ids: [{", ".join(map(str, range(20)))}], lora_request: None, prompt_adapter_request: None.
INFO:     10.0.0.1:51408 - "POST /v1/completions HTTP/1.1" 200 OK
INFO 01-01 00:00:01 logger.py:36] Received request cmpl-2-0: prompt: 'b', params: {PARAMS.format(False, 16)}, prompt_token_ids: [0, 1, 2], lora_request: LoRARequest(lora_name='sql', lora_int_id=1, lora_path='/x'), prompt_adapter_request: None.
INFO 01-01 00:00:02 logger.py:36] Received request cmpl-3-0: prompt: 'c', params: {PARAMS.format(True, 5)}, prompt_token_ids: [{", ".join(map(str, range(16)))}, 99], lora_request: None, prompt_adapter_request: None.
"""
NEW_LOG = f"""(APIServer pid=90458) INFO 02-13 11:33:31 [api_server.py:219] vLLM API server version 0.33.0
(APIServer pid=90458) DEBUG 02-13 11:33:33 [logger.py:66] Request chatcmpl-1 details: prompt: 'x', prompt_token_ids: [5, 6, 7], prompt_embeds shape: None.
(APIServer pid=90458) INFO 02-13 11:33:33 [logger.py:49] Received request chatcmpl-1: params: {PARAMS.format(False, 100)}, lora_request: None.
(APIServer pid=90458) DEBUG 02-13 11:33:35 [logger.py:66] Request chatcmpl-2 details: prompt: None, prompt_token_ids: [5, 6], prompt_embeds shape: None.
(APIServer pid=90458) INFO 02-13 11:33:35 [logger.py:49] Received request chatcmpl-2: params: {PARAMS.format(False, 100)}, lora_request: None.
(APIServer pid=90458) INFO 02-13 11:33:35 [logger.py:49] Received request chatcmpl-3: params: {PARAMS.format(False, 100)}, lora_request: None.
(APIServer pid=90458) INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1 (streaming delta): output: 'Yes', output_token_ids: [9], finish_reason: streaming_delta
(APIServer pid=90458) INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1 (streaming delta): output: ' no', output_token_ids: [8, 7], finish_reason: stop
(APIServer pid=90458) INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1 (streaming complete): output: 'Yes no', output_token_ids: None, finish_reason: streaming_complete
(APIServer pid=90458) INFO 02-13 11:33:37 [logger.py:92] Generated response chatcmpl-2: output: 'No', output_token_ids: (3, 4), finish_reason: stop
"""


def item(start_s: float, prompt: int, info: dict[str, Any], error: object = None) -> dict[str, Any]:
    return {
        "start_time": start_s,
        "end_time": start_s + 1,
        "request": "{}",
        "response": "",
        "info": {"input_tokens": prompt, **info},
        "error": error,
    }


LIFECYCLE = [
    item(
        1012.5,
        20,
        {"response_metrics": {"output_tokens": 6, "server_usage": {"completion_tokens": 7}}, "lora_adapter": "sql"},
    ),
    item(1010.0, 10, {"output_tokens": 3, "output_token_times": [1.0]}),
    item(1011.0, 10, {"response_metrics": {"output_tokens": 4, "server_usage": None}}),
    item(1014.0, 10, {"response_metrics": None}, {"error_type": "TimeoutError", "error_msg": ""}),
]


def request(start_s: float, prompt: int, output: int, **info: object) -> dict[str, Any]:
    return {
        "type_": "generative_request_stats",
        "request_id": "x",
        "request_start_time": start_s,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "info": info,
    }


GUIDELLM = {
    "type_": "generative_benchmarks_report",
    "metadata": {},
    "benchmarks": [
        {"request_totals": {"successful": 2}, "requests": {"successful": [request(101.0, 20, 2, conversation_id="c", turn_index=1), request(100.0, 10, 1, conversation_id="c", turn_index=0)], "incomplete": [{}], "errored": []}},
        {"requests": {"successful": [{"start_time": 200.0, "prompt_tokens": 30, "output_tokens": 3}], "incomplete": [], "errored": [{}, {}]}},
    ],
}  # fmt: skip


def read(folder: Path, text: str, limit: int | None = None) -> Trace:
    """From the plain file; a gzipped one on standard input is the same."""
    (folder / "t").write_text(text)
    (folder / "t.gz").write_bytes(gzip.compress(text.encode()))
    trace, again = read_trace(folder / "t", limit=limit), piped(folder / "t.gz", limit)
    assert (again.arrival_s.tolist(), again.prompt_tokens.tolist()) == (
        trace.arrival_s.tolist(),
        trace.prompt_tokens.tolist(),
    )
    assert again.segments == trace.segments
    return trace


@pytest.mark.parametrize(
    "text",
    [
        f"{json.dumps(exported(SECOND, ABORTED))}\n{json.dumps(exported(GATEWAY, ROUTED, FIRST))}\n",
        json.dumps(exported(SECOND, ABORTED, GATEWAY, ROUTED, FIRST), indent=2),
        json.dumps([exported(SECOND), exported(ABORTED, GATEWAY), exported(ROUTED, FIRST)]),
    ],
)
def test_spans_are_requests_of_the_engine(tmp_path: Path, text: str) -> None:
    """Lines, one document or an array; a gateway's span around the engine's is the same request; nanoseconds count."""
    trace = read(tmp_path, text)
    assert (trace.request_id, trace.arrival_s.tolist(), trace.format) == (("a", "b"), [0.0, 1.0], "opentelemetry")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([14, 30], [8, 2])
    assert [note.partition(": ")[2] for note in trace.notes[:2]] == [
        "1 of its spans, around that of the same request further in, is left out.",
        "1 of its spans, without `gen_ai.usage.completion_tokens` (they failed), is left out.",
    ]


def test_conversations_of_spans_are_sessions(tmp_path: Path) -> None:
    """By `gen_ai.conversation.id`, where a span has one."""
    turn = span("chat", 5, "x", conversation__id="c", usage__input_tokens=3, usage__output_tokens=4)
    assert read(tmp_path, json.dumps(exported(turn, FIRST))).session_id == ("c", "alone 1")


def test_an_old_log_has_prompts_by_token(tmp_path: Path) -> None:
    """Over New Year; the request fixed how much it wants, or is left out; adapters, and prefixes by block."""
    trace = read(tmp_path, OLD_LOG)
    assert (trace.arrival_s.tolist(), trace.request_id) == ([0.0, 3.0], ("cmpl-1-0", "cmpl-3-0"))
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([20, 17], [64, 5])
    assert trace.segments is not None
    assert trace.segments[0][0] == trace.segments[1][0]
    assert trace.segments[0][1][0] != trace.segments[1][1][0]
    assert "1 of its requests, with no length of the output (VLLM_LOGGING_LEVEL=DEBUG" in trace.notes[0]


def test_a_new_log_has_them_in_lines_of_their_own(tmp_path: Path) -> None:
    """Details of level DEBUG, and responses at once or piece by piece; a request without details is left out."""
    trace = read(tmp_path, NEW_LOG)
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == (
        [0.0, 2.0],
        [3, 2],
        [3, 2],
    )
    assert "1 of its requests, with no prompt_token_ids (VLLM_LOGGING_LEVEL=DEBUG" in trace.notes[0]
    stamped = "".join(f"2026-02-13T11:33:33.5Z {line}\n" for line in NEW_LOG.splitlines())
    assert read(tmp_path, stamped).prompt_tokens.tolist() == trace.prompt_tokens.tolist()  # kubectl logs --timestamps
    lora = read(tmp_path, OLD_LOG.replace("ignore_eos=False", "ignore_eos=True"))
    assert lora.lora_name == ("", "sql", "")


def test_inference_perf_results_in_order_of_sending(tmp_path: Path) -> None:
    """The server's own count where there is one; failures are left out."""
    trace = read(tmp_path, json.dumps(LIFECYCLE, indent=2))
    assert (trace.arrival_s.tolist(), trace.output_tokens.tolist()) == ([0.0, 1.0, 2.5], [3, 4, 7])
    assert trace.lora_name == ("", "", "sql")
    assert "1 of its items, with an error or no output (they failed), is left out." in trace.notes[0]
    assert len(read(tmp_path, json.dumps(LIFECYCLE), limit=2)) == 2


@pytest.mark.parametrize("indent", [None, 1])
def test_guidellm_benchmarks_are_stages(tmp_path: Path, indent: int | None) -> None:
    """One after the other; turns of conversations are sessions; what did not succeed is counted."""
    trace = read(tmp_path, json.dumps(GUIDELLM, indent=indent))
    assert trace.arrival_s.tolist() == [0.0, 1.0, 100.0]
    assert trace.stage is not None
    assert (trace.stage.tolist(), trace.prompt_tokens.tolist()) == ([0, 0, 1], [10, 20, 30])
    assert trace.session_id == ("0.c", "0.c", "alone 2")
    assert [note.partition(": ")[2] for note in trace.notes[:2]] == [
        "1 of its requests, which are incomplete, is left out.",
        "2 of its requests, which are errored, are left out.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(exported(ROUTED)), "got none: 1 of its spans, without `gen_ai.usage.prompt_tokens`, do not count"),
        (json.dumps({"resourceSpans": 3}), "t, line 1: `resourceSpans` must be a list of objects, got 3"),
        (json.dumps(exported(FIRST | {"startTimeUnixNano": "x"})), "`startTimeUnixNano` must be an integer .*got x"),
        (json.dumps(exported(span("x", 0, "i", usage__prompt_tokens=0, usage__completion_tokens=2))), "must be an integer .*got 0"),
        (OLD_LOG.replace("12-31 23:59:59", "02-30 23:59:59"), "t, line 2: the log must have times such as 02-13"),
        (OLD_LOG.replace("max_tokens=64", "max_tokens=99999999999"), "t, line 2: `max_tokens` must be an integer"),
        (NEW_LOG.replace("details", "detail"), "got none: 3 of its requests, with no prompt_token_ids"),
        (json.dumps([LIFECYCLE[0], {**LIFECYCLE[1], "start_time": None}]), "t, item 2: `start_time` must be .*got nothing"),
        (json.dumps([LIFECYCLE[0], {**LIFECYCLE[1], "info": 3}]), "t, item 2: `info` must be an object"),
        (json.dumps({"benchmarks": {}}), "t, line 1: `benchmarks` must be a list of objects"),
        (json.dumps({"benchmarks": [{}]}), "t, line 1: `successful` must be a list of objects, got nothing"),
        (
            json.dumps({"benchmarks": [{"metrics": {"request_totals": {"successful": 9}}, "requests": {"successful": []}}]}),
            "t, line 1: `successful` must have all 9 requests, got a sample of 0; have GuideLLM keep all",
        ),
        (2 * f"{json.dumps(GUIDELLM)}\n", "t, line 2: holds a second report"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    """Place, key, rule and what was got."""
    monkeypatch.chdir(tmp_path)
    Path("t").write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace("t")


def test_a_log_of_several_answers(tmp_path: Path) -> None:
    """Lines of each answer, whole or in pieces, make as many answers of their mean length; one that fixes its length says it of each."""
    several = PARAMS.replace("n=1", "n=3")
    file = tmp_path / "log"
    file.write_text(
        f"""INFO 02-13 11:33:33 [logger.py:49] Received request chatcmpl-1: params: {several.format(False, 9)}, prompt_token_ids: [1, 2], lora_request: None.
INFO 02-13 11:33:34 [logger.py:49] Received request chatcmpl-2: params: {several.format(False, 9)}, prompt_token_ids: [3], lora_request: None.
INFO 02-13 11:33:34 [logger.py:49] Received request cmpl-3-0: params: {several.format(True, 6)}, prompt_token_ids: [4], lora_request: None.
INFO 02-13 11:33:34 [logger.py:49] Received request chatcmpl-4: params: {PARAMS.format(True, 6)}, prompt_token_ids: [4], lora_request: None.
INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1: output: 'a', output_token_ids: [9, 8, 7], finish_reason: stop
INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1: output: 'b', output_token_ids: [9], finish_reason: stop
INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-1: output: 'c', output_token_ids: [9, 5, 6, 6, 6], finish_reason: stop
INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-2 (streaming delta): output: 'd', output_token_ids: [9, 8, 7, 6], finish_reason: streaming_delta
INFO 02-13 11:33:36 [logger.py:92] Generated response chatcmpl-2 (streaming delta): output: 'e', output_token_ids: [5, 4], finish_reason: stop
"""
    )
    found = read_trace(file)
    assert found.n is not None
    assert (found.n.tolist(), found.output_tokens.tolist()) == ([3, 3, 3, 1], [3, 2, 6, 6])
