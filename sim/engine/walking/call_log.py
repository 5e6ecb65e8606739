"""The rows of batches that calls worked out together, kept as what they have in common and their times until they are put away."""

from struct import Struct, pack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.columns import Ints
from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.leap_log import LeapLog
from sim.engine.narrow import ROWS_AT_ONCE, Rows
from sim.engine.walking.calls_ahead import MOST_CALLS, CallsAhead

NUM_SHARED = 6
"""Rows packed before, the first call's place, calls, running requests, waiting ones, free blocks; then by place decodes, contexts, batches back."""

PACK_FLOATS = [Struct(f"{count}d").pack for count in range(MOST_CALLS + 1)]
MOST_BYTES = ROWS_AT_ONCE * np.dtype(np.float64).itemsize


class CallLog(LeapLog):
    """Packed rows, with how many batches back the last tokens of each lie; and calls between them."""

    def __init__(self) -> None:
        super().__init__()
        self._num_back = bytearray()
        self._num_slots = 1
        self._clear()

    def _clear(self) -> None:
        self._shared: list[int] = []
        self._num_taken: list[int] = []
        self._starts_s, self._ends_s, self._durations_s = bytearray(), bytearray(), bytearray()

    def next_goes_back(self, num_back: int) -> None:
        """How many batches, of the row that is added next."""
        self._num_back.append(num_back)

    def add_calls(self, ahead: CallsAhead, num_running: int, num_waiting: int) -> None:
        """Record the batches of all of them that are not empty."""
        num_slots, num_calls = len(ahead.counts), ahead.num_calls
        num_packed = len(self._latest) // LEAP.itemsize
        self._num_slots = num_slots
        self._shared.extend(
            [num_packed, ahead.first_call % num_slots, num_calls, num_running, num_waiting, ahead.num_free]
        )
        self._shared.extend(ahead.counts)
        self._shared.extend(ahead.contexts)
        self._shared.extend(ahead.num_back)
        self._num_taken.extend(ahead.num_taken)
        as_bytes = PACK_FLOATS[num_calls]
        self._starts_s += as_bytes(*ahead.starts_s)
        if ahead.durations_s:
            self._durations_s += as_bytes(*ahead.durations_s)
        else:
            self._ends_s += as_bytes(*ahead.ends_s[-num_calls:])
        if len(self._starts_s) >= MOST_BYTES:
            self._flush()

    def _put_away(self, rows: Rows) -> None:
        super()._put_away(rows)
        self.blocks_so_far[-1].note_num_back(np.frombuffer(self._num_back, dtype=np.uint8))
        self._num_back = bytearray()

    def _flush(self) -> None:
        if not self._shared:
            super()._flush()
            return
        packed = np.frombuffer(self._latest, dtype=LEAP)
        calls, num_packed = self._calls()
        ran = np.flatnonzero(calls["num_decodes"])
        places = num_packed[ran] + np.arange(len(ran))
        are_packed = np.ones(len(ran) + len(packed), dtype=np.bool_)
        are_packed[places] = False
        others = np.flatnonzero(are_packed)
        order = np.empty(len(are_packed), dtype=np.intp)
        order[places], order[others] = ran, len(num_packed) + np.arange(len(packed))
        columns = {}
        for name in LEAP.names or ():
            if name in calls:
                columns[name] = np.concatenate((calls[name], packed[name])).take(order)
            else:
                columns[name] = np.zeros(len(order), LEAP[name])
                columns[name][others] = packed[name]
        for name in ("num_sampled", "num_continued"):
            columns[name] = columns["num_decodes"].copy()
            columns[name][others] = packed[name]
        self.blocks_so_far.append(LeapBlock(columns))
        num_back = np.concatenate((calls["num_back"], np.frombuffer(self._num_back, np.uint8)))
        self.blocks_so_far[-1].note_num_back(num_back.take(order))
        self._latest, self._num_back = bytearray(), bytearray()
        self._clear()

    def _calls(self) -> tuple[dict[str, NDArray[Any]], Ints]:
        """Columns of calls, empty ones too, and how many batches back each goes; the rows packed before each.

        The other columns are 0 or, of those that do not decode alone, differ from the number of decodes.
        """
        num_slots = self._num_slots
        shared = _array(self._shared).reshape(-1, NUM_SHARED + 3 * num_slots)
        num_packed, first, num_calls, num_running, num_waiting, num_free = shared[:, :NUM_SHARED].T
        counts, contexts, num_back = np.split(shared[:, NUM_SHARED:], 3, axis=1)
        starts_s, durations_s = np.frombuffer(self._starts_s), np.frombuffer(self._durations_s)
        if not len(durations_s):
            durations_s = np.frombuffer(self._ends_s) - starts_s
        begins, call = np.cumsum(num_calls) - num_calls, np.arange(len(starts_s))
        rounds = (call + np.repeat(first - begins, num_calls)) // num_slots
        of_slot = call + np.repeat(first - begins + np.arange(len(shared)) * num_slots, num_calls) - rounds * num_slots
        num_decodes = counts.astype(np.int32).ravel().take(of_slot)
        in_round_0 = contexts - np.where(np.arange(num_slots) < first[:, np.newaxis], counts, 0)
        taken = np.cumsum(_array(self._num_taken))
        free = num_free + np.append(0, taken)[begins]
        goes_back = np.repeat((counts > 0).sum(axis=1, dtype=np.uint8), num_calls)
        for number in range(num_slots):  # its slot's last batch was launched before these calls
            calls = begins[num_calls > number] + number
            goes_back[calls] = num_back.ravel()[of_slot[calls]]
        columns = {
            "num_steps": np.ones(len(call), np.int32),
            "num_decodes": num_decodes,
            "num_running": np.repeat(num_running.astype(np.int32), num_calls),
            "num_waiting": np.repeat(num_waiting.astype(np.int32), num_calls),
            "num_free_blocks": (np.repeat(free, num_calls) - taken).astype(np.int32),
            "decode_context_tokens": in_round_0.ravel().take(of_slot) + rounds * num_decodes,
            "start_s": starts_s,
            "linear_s": durations_s,
            "num_back": goes_back,
        }
        return columns, np.repeat(num_packed, num_calls)


def _array(values: list[int]) -> Ints:
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)  # three times as fast as numpy reads a list
