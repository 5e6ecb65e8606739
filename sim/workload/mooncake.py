"""Mooncake traces: JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

https://github.com/kvcache-ai/Mooncake: a `hash_ids` entry stands for a block of 512 prompt tokens, the last for what
remains; equal ids mean that the prompts are equal up to and including that block.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from sim.workload.columns import second_column, token_column
from sim.workload.prefixes import segment_column
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids")
BLOCK_SIZE = 512
MS_PER_S = 1000


def _parts(sheet: Sheet) -> Iterator[Part]:
    """The requests of a Mooncake trace. Raises TraceError with the line of the first value that is wrong."""
    sheet.check_columns(COLUMNS)
    for chunk in sheet.chunks:
        prompt_tokens = token_column(sheet, chunk, "input_length")
        yield Part(
            places=np.array(chunk.places),
            arrival_s=second_column(sheet, chunk, "timestamp", MS_PER_S),
            prompt_tokens=prompt_tokens,
            output_tokens=token_column(sheet, chunk, "output_length"),
            segments=segment_column(sheet, chunk, prompt_tokens.tolist(), repeat(BLOCK_SIZE)),
        )


MOONCAKE = Format("mooncake", COLUMNS[:3], _parts)
