"""Qwen-Bailian traces: JSON lines with `chat_id`, `parent_chat_id`, `timestamp` (s), `input_length`, `output_length`, `hash_ids`.

https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon (README, "Data Specification of the Traces"): an id of `hash_ids`
stands for a block of 16 prompt tokens, and `parent_chat_id` is -1 for a root. A chat that goes on from another one is the
next turn of its session; a second one from the same chat is a branch, and begins a session of its own, as it waits for
no answer of the first.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from sim.workload.answered import answered_chunks
from sim.workload.columns import MAX_INTEGER, integer_column, second_column, token_column
from sim.workload.prefixes import segment_column
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

COLUMNS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
OPTIONAL = ("type", "turn")
BLOCK_SIZE = 16


def _parts(sheet: Sheet) -> Iterator[Part]:
    sheet.check_columns(COLUMNS, OPTIONAL)
    sessions = _Sessions()
    for chunk in answered_chunks(sheet, "output_length"):
        chats, parents = (integer_column(sheet, chunk, name, -MAX_INTEGER, MAX_INTEGER) for name in COLUMNS[:2])
        prompt_tokens = token_column(sheet, chunk, "input_length")
        yield Part(
            places=np.array(chunk.places),
            arrival_s=second_column(sheet, chunk, "timestamp"),
            prompt_tokens=prompt_tokens,
            output_tokens=token_column(sheet, chunk, "output_length"),
            session_id=list(map(sessions.joined, chats.tolist(), parents.tolist())),
            segments=segment_column(sheet, chunk, prompt_tokens.tolist(), repeat(BLOCK_SIZE)),
        )


BAILIAN = Format("qwen-bailian", ("chat_id", "parent_chat_id"), _parts, row_is_request=False)


class _Sessions:
    """Chains of chats, each the next turn of the one before."""

    def __init__(self) -> None:
        self._by_last: dict[int, str] = {}
        self._count = 0

    def joined(self, chat: int, parent: int) -> str:
        """The session of a chat, which is its last from now on."""
        session = self._by_last.pop(parent, None)
        if session is None:
            session = f"s{self._count}"
            self._count += 1
        self._by_last[chat] = session
        return session
