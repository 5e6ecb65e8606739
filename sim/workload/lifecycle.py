"""What inference-perf measured of each request: `per_request_lifecycle_metrics.json`, an array.

https://github.com/kubernetes-sigs/inference-perf (reportgen/base.py, apis/base.py): items have `start_time` in seconds, `error`, and in
`info` the `input_tokens`, and in its `response_metrics` the server's own `server_usage`, or the `output_tokens` that the client counted;
older ones have `output_tokens` in `info` itself. Items stand in the order in which requests ended.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sim.workload.answered import NOTHING
from sim.workload.calls import Call, object_of, part_of, seconds_of, tokens_of
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part


def _parts(sheet: Sheet) -> Iterator[Part]:
    yield from part_of([call for place, row in sheet.rows if (call := _call(sheet, place, row))])


LIFECYCLE = Format(
    "inference-perf", ("info",), _parts, row_is_request=False, in_order=False, from_first=True,
    note="it has been measured, and requests come when it sent them; what prompts share is not recorded and taken as nothing",
)  # fmt: skip


def _call(sheet: Sheet, place: int, row: Mapping[str, Any]) -> Call | None:
    """The request, None where it has failed."""
    info = object_of(sheet, place, "info", row.get("info"))
    output = None if row.get("error") else _output(sheet, place, info)
    if output in NOTHING:
        sheet.leave_out(1, "with an error or no output (they failed)")
        return None
    return Call(
        place,
        seconds_of(sheet, place, "start_time", row.get("start_time")),
        tokens_of(sheet, place, "input_tokens", info.get("input_tokens")),
        tokens_of(sheet, place, "output_tokens", output),
        lora_name=str(info.get("lora_adapter") or ""),
    )


def _output(sheet: Sheet, place: int, info: Mapping[str, Any]) -> Any:
    response = object_of(sheet, place, "response_metrics", info.get("response_metrics")) or info
    usage = object_of(sheet, place, "server_usage", response.get("server_usage"))
    return usage.get("completion_tokens", response.get("output_tokens"))
