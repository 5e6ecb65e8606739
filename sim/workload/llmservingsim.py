"""Workloads of LLMServingSim: JSON lines with `input_toks`, `output_toks` and `arrival_time_ns`, or sessions of `sub_requests`.

https://github.com/casys-kaist/LLMServingSim (docs/docs/workloads/jsonl-format.md): both kinds of line may stand in one file, in
any order; `tool_duration_ns` passes between an answer and the next call of a session; `input_tok_ids` are the prompt's tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sim.workload.calls import Call, part_of, seconds_of, tokens_of
from sim.workload.columns import show
from sim.workload.stamps import NS_PER_S
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part


def _parts(sheet: Sheet) -> Iterator[Part]:
    yield from part_of([call for place, row in sheet.rows for call in _calls(sheet, place, row)])


LLMSERVINGSIM = Format(
    "llmservingsim",
    ("arrival_time_ns", "input_toks", "sub_requests"),
    _parts,
    row_is_request=False,
    in_order=False,
)


def _calls(sheet: Sheet, place: int, row: Mapping[str, Any]) -> Iterator[Call]:
    """The request of a line, or those of its session, each a turn."""
    arrival_s = seconds_of(sheet, place, "arrival_time_ns", row.get("arrival_time_ns"), NS_PER_S)
    if "sub_requests" not in row:
        yield _call(sheet, place, row, arrival_s)
        return
    turns = row["sub_requests"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise sheet.fault(place, f"`sub_requests` must be a list of objects, got {show(turns)}; give each call one.")
    session, think_time_s = str(row.get("session_id", f"{sheet.unit} {place}")), 0.0
    for turn in turns:
        yield _call(sheet, place, turn, arrival_s)._replace(session_id=session, think_time_s=think_time_s)
        think_time_s = seconds_of(sheet, place, "tool_duration_ns", turn.get("tool_duration_ns", 0), NS_PER_S)


def _call(sheet: Sheet, place: int, values: Mapping[str, Any], arrival_s: float) -> Call:
    prompt_tokens = tokens_of(sheet, place, "input_toks", values.get("input_toks"))
    tokens = values.get("input_tok_ids")
    if tokens is not None and not (
        isinstance(tokens, list) and len(tokens) == prompt_tokens and set(map(type, tokens)) == {int}
    ):
        got = f"{len(tokens):,}" if isinstance(tokens, list) else show(tokens)
        raise sheet.fault(
            place, f"`input_tok_ids` must be {prompt_tokens:,} integers, as `input_toks` says, got {got}."
        )
    output_tokens = tokens_of(sheet, place, "output_toks", values.get("output_toks"))
    return Call(place, arrival_s, prompt_tokens, output_tokens, tokens=tokens)
