"""OpenTelemetry spans of requests, as vLLM, gateways and instrumented clients export them: OTLP in JSON.

A line or document has `resourceSpans` with `scopeSpans` with `spans` (https://opentelemetry.io/docs/specs/otlp, JSON encoding;
integers may be text). vLLM's span `llm_request` starts at the request's arrival and has `gen_ai.usage.prompt_tokens` and
`gen_ai.usage.completion_tokens` (vllm/tracing, v1/engine/output_processor.py); the semantic conventions have `input_tokens` and
`output_tokens` since 1.27, and `gen_ai.conversation.id`. Spans are written as they end.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sim.workload.answered import NOTHING
from sim.workload.calls import Call, objects_of, part_of, tokens_of
from sim.workload.columns import MAX_INTEGER, integer_value, show
from sim.workload.stamps import NS_PER_S
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

MARK = "resourceSpans"
PROMPT = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
OUTPUT = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")

Identity = tuple[str, str]
"""The trace and the span."""


class Span(NamedTuple):
    place: int
    identity: Identity
    parent: Identity
    start: Any
    attributes: Mapping[str, Any]

    def attribute(self, names: tuple[str, ...]) -> Any:
        return next((self.attributes[name] for name in names if name in self.attributes), None)


def _parts(sheet: Sheet) -> Iterator[Part]:
    spans = [span for place, row in sheet.rows for span in _spans(sheet, place, row)]
    counted = _of_requests(sheet, spans)
    starts_ns = [_start_ns(sheet, span) for span in counted]
    yield from part_of([_call(sheet, span, at - starts_ns[0]) for span, at in zip(counted, starts_ns, strict=True)])


OTLP = Format(
    "opentelemetry", (MARK,), _parts, row_is_request=False, in_order=False, from_first=True,
    note="what prompts share is not recorded, but for turns of conversations that have an id",
)  # fmt: skip


def _of_requests(sheet: Sheet, spans: list[Span]) -> list[Span]:
    """Those with token counts; of spans within each other the innermost, which is the engine's."""
    parents = {span.identity: span.parent for span in spans}
    used = {span.identity: span for span in spans if span.attribute(PROMPT) is not None}
    outer = {above for identity in used for above in _above(identity, parents)}
    inner = [span for span in used.values() if span.identity not in outer]
    answered = [span for span in inner if span.attribute(OUTPUT) not in NOTHING]
    sheet.leave_out(len(used) - len(inner), "around that of the same request further in", "span")
    sheet.leave_out(len(inner) - len(answered), f"without `{OUTPUT[0]}` (they failed)", "span")
    if not used:
        sheet.leave_out(len(spans), f"without `{PROMPT[0]}`", "span")
    return answered


def _above(identity: Identity, parents: Mapping[Identity, Identity]) -> Iterator[Identity]:
    seen = {identity}
    while (identity := parents.get(identity, identity)) not in seen:
        seen.add(identity)
        yield identity


def _spans(sheet: Sheet, place: int, row: Mapping[str, Any]) -> Iterator[Span]:
    for resource in objects_of(sheet, place, MARK, row.get(MARK)):
        for scope in objects_of(sheet, place, "scopeSpans", resource.get("scopeSpans")):
            for number, span in enumerate(objects_of(sheet, place, "spans", scope.get("spans"))):
                trace = str(span.get("traceId", ""))
                identity = str(span.get("spanId") or f"{place}.{number}.{id(span)}")
                attributes = {
                    str(pair.get("key")): _value(pair.get("value"))
                    for pair in objects_of(sheet, place, "attributes", span.get("attributes", []))
                }
                parent = str(span.get("parentSpanId", ""))
                yield Span(place, (trace, identity), (trace, parent), span.get("startTimeUnixNano"), attributes)


def _value(value: Any) -> Any:
    """What stands under `intValue`, `stringValue`, ..."""
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _start_ns(sheet: Sheet, span: Span) -> int:
    start = integer_value(span.start, 0, MAX_INTEGER)
    if start is None:
        raise sheet.fault(
            span.place, f"`startTimeUnixNano` must be an integer of nanoseconds, got {show(span.start)}; mend the span."
        )
    return start


def _call(sheet: Sheet, span: Span, since_ns: int) -> Call:
    conversation = span.attributes.get("gen_ai.conversation.id")
    request = span.attributes.get("gen_ai.request.id")
    return Call(
        span.place,
        since_ns / NS_PER_S,
        tokens_of(sheet, span.place, PROMPT[0], span.attribute(PROMPT)),
        tokens_of(sheet, span.place, OUTPUT[0], span.attribute(OUTPUT)),
        request_id=None if request is None else str(request),
        session_id=None if conversation is None else str(conversation),
    )
