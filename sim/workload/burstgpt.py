"""BurstGPT traces: CSV with `Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type`.

https://github.com/HPMLL/BurstGPT (README, release v2.0): `Timestamp` is in seconds from the first day's midnight, and a
failure has 0 `Response tokens`; `Session ID` and `Elapsed time` came with v2.0.
"""

from collections.abc import Iterator

import numpy as np

from sim.workload.answered import answered_chunks
from sim.workload.columns import second_column, token_column
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
OPTIONAL = ("Model", "Total tokens", "Log Type", "Session ID", "Elapsed time")


def _parts(sheet: Sheet) -> Iterator[Part]:
    sheet.check_columns(COLUMNS, OPTIONAL)
    for chunk in answered_chunks(sheet, "Response tokens"):
        yield Part(
            places=np.array(chunk.places),
            arrival_s=second_column(sheet, chunk, "Timestamp"),
            prompt_tokens=token_column(sheet, chunk, "Request tokens"),
            output_tokens=token_column(sheet, chunk, "Response tokens"),
        )


BURSTGPT = Format(
    "burstgpt",
    ("Request tokens", "Response tokens"),
    _parts,
    row_is_request=False,
    from_first=True,
    note="the requests to all its models come together, and its sessions are not used, as it does not say what prompts repeat",
)
