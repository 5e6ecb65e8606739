"""The JSON of GuideLLM, `benchmarks.json`: what it sent, benchmark after benchmark.

https://github.com/vllm-project/guidellm (schemas/request_stats.py, schemas/info.py): a benchmark has `requests`, of which those
`successful` have `prompt_tokens`, `output_tokens` and `request_start_time` (`start_time` before 0.4), in seconds since 1970; `info` has
`conversation_id` and `turn_index`; `request_totals`, of the benchmark or its `metrics`, count requests also where it kept a sample. Each benchmark begins when the one before it has ended, as a stage does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sim.workload.calls import Call, object_of, objects_of, part_of, seconds_of, tokens_of
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

MARK = "benchmarks"
FAILED = ("errored", "incomplete")


def _parts(sheet: Sheet) -> Iterator[Part]:
    rows = list(sheet.rows)
    if len(rows) > 1:
        raise sheet.fault(rows[1][0], "holds a second report, a trace is one; keep one.")
    place, report = rows[0]
    calls: list[Call] = []
    for stage, benchmark in enumerate(objects_of(sheet, place, MARK, report.get(MARK))):
        calls += _calls(sheet, place, benchmark, stage)
    yield from part_of([call._replace(place=number) for number, call in enumerate(calls, 1)])


GUIDELLM = Format(
    "guidellm", (MARK,), _parts, row_is_request=False, in_order=False, from_first=True,
    note="it has been measured, and requests come when it sent them; what prompts share is not recorded, but for turns of conversations",
)  # fmt: skip


def _calls(sheet: Sheet, place: int, benchmark: Mapping[str, Any], stage: int) -> Iterator[Call]:
    requests = object_of(sheet, place, "requests", benchmark.get("requests"))
    done = objects_of(sheet, place, "successful", requests.get("successful"))
    for status in FAILED:
        sheet.leave_out(
            len(objects_of(sheet, place, status, requests.get(status, []))), f"which are {status}", "request"
        )
    if len(done) < (num_done := _num_successful(benchmark)):
        raise sheet.fault(
            place,
            f"`successful` must have all {num_done:,} requests, got a sample of {len(done):,}; have GuideLLM keep all.",
        )
    infos = [object_of(sheet, place, "info", request.get("info")) for request in done]
    has_turns = any(info.get("turn_index") for info in infos)
    for request, info in zip(done, infos, strict=True):
        start = request.get("request_start_time", request.get("start_time"))
        conversation = info.get("conversation_id") if has_turns else None
        yield Call(
            place,
            seconds_of(sheet, place, "request_start_time", start),
            tokens_of(sheet, place, "prompt_tokens", request.get("prompt_tokens")),
            tokens_of(sheet, place, "output_tokens", request.get("output_tokens")),
            session_id=None if conversation is None else f"{stage}.{conversation}",
            stage=stage,
        )


def _num_successful(benchmark: Mapping[str, Any]) -> int:
    """As it was counted; 0 where it was not."""
    metrics = benchmark.get("metrics")
    totals = benchmark.get("request_totals") or (metrics.get("request_totals") if isinstance(metrics, dict) else None)
    number = totals.get("successful") if isinstance(totals, dict) else 0
    return number if isinstance(number, int) else 0
