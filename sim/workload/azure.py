"""Azure LLM inference traces, 2023 and 2024: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`.

https://github.com/Azure/AzurePublicDataset: time stamps are `2023-11-16 18:15:46.6805900`, in the 2024 files
`2024-05-10 00:00:00.009930+00:00`, where a whole second has no fraction. Times become seconds since the first request.
"""

from collections.abc import Iterator

import numpy as np

from sim.workload.columns import token_column
from sim.workload.stamps import NS_PER_S, stamp_column
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _parts(sheet: Sheet) -> Iterator[Part]:
    """The requests of an Azure trace. Raises TraceError with the line of the first cell that is wrong."""
    sheet.check_columns(COLUMNS)
    start_ns = None
    for chunk in sheet.chunks:
        stamps = stamp_column(sheet, chunk, "TIMESTAMP")
        start_ns = stamps[0] if start_ns is None else start_ns
        yield Part(
            places=np.array(chunk.places),
            arrival_s=(stamps - start_ns) / NS_PER_S,
            prompt_tokens=token_column(sheet, chunk, "ContextTokens"),
            output_tokens=token_column(sheet, chunk, "GeneratedTokens"),
        )


AZURE = Format("azure", COLUMNS, _parts)
