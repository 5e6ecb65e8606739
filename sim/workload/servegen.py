"""Workloads that ServeGen generates, as its `save_requests_to_csv` writes them, and its traces of batches.

https://github.com/alibaba/ServeGen: `request_id,timestamp,input_tokens,output_tokens` with seconds (tests/test_utils.py);
a batch (data/offline/README.md, traces d to f) has `input_length`, `output_length` and no times, as it was sent as a whole.
"""

from collections.abc import Iterator

import numpy as np

from sim.workload.columns import name_column, second_column, token_column
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

COLUMNS = ("request_id", "timestamp", "input_tokens", "output_tokens")
BATCH_COLUMNS = ("request_id", "input_length", "output_length", "duration")


def _parts(sheet: Sheet) -> Iterator[Part]:
    sheet.check_columns(COLUMNS)
    for chunk in sheet.chunks:
        yield Part(
            places=np.array(chunk.places),
            arrival_s=second_column(sheet, chunk, "timestamp"),
            prompt_tokens=token_column(sheet, chunk, "input_tokens"),
            output_tokens=token_column(sheet, chunk, "output_tokens"),
            request_id=name_column(sheet, chunk, "request_id"),
        )


def _batch_parts(sheet: Sheet) -> Iterator[Part]:
    sheet.check_columns(BATCH_COLUMNS, ("type",))
    for chunk in sheet.chunks:
        yield Part(
            places=np.array(chunk.places),
            arrival_s=np.zeros(len(chunk.places)),
            prompt_tokens=token_column(sheet, chunk, "input_length"),
            output_tokens=token_column(sheet, chunk, "output_length"),
            request_id=name_column(sheet, chunk, "request_id"),
        )


SERVEGEN = Format("servegen", ("input_tokens",), _parts)
SERVEGEN_BATCH = Format("servegen batch", ("duration",), _batch_parts, note="a batch: its requests come all at once")
