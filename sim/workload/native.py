"""The native trace: CSV, JSON lines or Parquet with `arrival_s, prompt_tokens, output_tokens`, the rest optional."""

from collections.abc import Iterator

import numpy as np

from sim.workload.columns import (
    MAX_INTEGER,
    MAX_TOKENS,
    Floats,
    Ints,
    integer_column,
    name_column,
    optional_name_column,
    second_column,
    token_column,
)
from sim.workload.parallel_sampling import MOST_ANSWERS
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE, segment_column
from sim.workload.table import Chunk, Sheet
from sim.workload.trace import Segment
from sim.workload.trace_builder import Format, Part

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = (
    "request_id", "n", "priority", "lora_name", "session_id", "think_time_s", "hold_s", "stage", "line", "max_concurrency", "acceptance_length",
    "slo_class", "slo", "hash_ids", "hash_block_size", "measured",
)  # fmt: skip
NEEDED = {"hash_block_size": "hash_ids", "think_time_s": "session_id", "line": "max_concurrency", "slo": "slo_class"}
"""Columns that mean nothing without another."""


def _parts(sheet: Sheet) -> Iterator[Part]:
    """The requests of a native trace. `measured` belongs to validation and is left alone.

    Raises TraceError with the line of the first cell that is wrong.
    """
    sheet.check_columns(COLUMNS, OPTIONAL)
    for column, needed in NEEDED.items():
        if column in sheet.columns and needed not in sheet.columns:
            raise sheet.fault(1, f"`{column}` means nothing without `{needed}`; add that column or remove this one.")
    for chunk in sheet.chunks:
        yield _part(sheet, chunk)


NATIVE = Format("native", COLUMNS, _parts)


def _part(sheet: Sheet, chunk: Chunk) -> Part:
    has = chunk.cells.keys()
    prompt_tokens = token_column(sheet, chunk, "prompt_tokens")
    return Part(
        places=np.array(chunk.places),
        arrival_s=second_column(sheet, chunk, "arrival_s"),
        prompt_tokens=prompt_tokens,
        output_tokens=token_column(sheet, chunk, "output_tokens"),
        request_id=name_column(sheet, chunk, "request_id") if "request_id" in has else None,
        n=integer_column(sheet, chunk, "n", 1, MOST_ANSWERS) if "n" in has else None,
        priority=integer_column(sheet, chunk, "priority", -MAX_INTEGER, MAX_INTEGER) if "priority" in has else None,
        lora_name=optional_name_column(sheet, chunk, "lora_name") if "lora_name" in has else None,
        session_id=name_column(sheet, chunk, "session_id") if "session_id" in has else None,
        think_time_s=second_column(sheet, chunk, "think_time_s") if "think_time_s" in has else None,
        hold_s=second_column(sheet, chunk, "hold_s") if "hold_s" in has else None,
        stage=integer_column(sheet, chunk, "stage", 0, MAX_TOKENS) if "stage" in has else None,
        line=integer_column(sheet, chunk, "line", 0, MAX_TOKENS) if "line" in has else None,
        max_concurrency=integer_column(sheet, chunk, "max_concurrency", 1, MAX_TOKENS)
        if "max_concurrency" in has
        else None,
        acceptance_length=_lengths(sheet, chunk) if "acceptance_length" in has else None,
        slo_class=name_column(sheet, chunk, "slo_class") if "slo_class" in has else None,
        slo=optional_name_column(sheet, chunk, "slo") if "slo" in has else None,
        segments=_segments(sheet, chunk, prompt_tokens) if "hash_ids" in has else None,
    )


def _lengths(sheet: Sheet, chunk: Chunk) -> Floats:
    lengths = second_column(sheet, chunk, "acceptance_length")
    for place, length in zip(chunk.places, lengths.tolist(), strict=True):
        if length < 1:
            raise sheet.fault(
                place,
                f"{sheet.said('acceptance_length')} must be at least 1, the token that is sampled, got {length:g}.",
            )
    return lengths


def _segments(sheet: Sheet, chunk: Chunk, prompt_tokens: Ints) -> list[tuple[Segment, ...]]:
    if "hash_block_size" in chunk.cells:
        sizes = integer_column(sheet, chunk, "hash_block_size", 1, MAX_TOKENS)
    else:
        sizes = np.full(len(prompt_tokens), DEFAULT_HASH_BLOCK_SIZE)
    return segment_column(sheet, chunk, prompt_tokens.tolist(), sizes.tolist())
