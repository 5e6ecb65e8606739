"""The rows of batches that calls worked out together, kept as what they have in common and their times until they are put away."""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.columns import Ints
from sim.engine.leap_block import LEAP
from sim.engine.leap_log import LeapLog
from sim.engine.narrow import ROWS_AT_ONCE, Rows
from sim.engine.walking.calls_ahead import CallsAhead

NUM_SHARED = 6
"""Rows packed before, the first call's place, calls, running requests, waiting ones, free blocks; then by place decodes, contexts, batches back."""


class CallLog(LeapLog):
    """Packed rows, with how many batches back the last tokens of each lie; and calls between them."""

    def __init__(self) -> None:
        super().__init__()
        self._num_back = bytearray()
        self._clear()

    def _clear(self) -> None:
        self._shared = array("q")
        self._starts_s = array("d")
        self._durations_s = array("d")
        self._num_taken = array("q")

    def next_goes_back(self, num_back: int) -> None:
        """How many batches, of the row that is added next."""
        self._num_back.append(num_back)

    def add_calls(self, ahead: CallsAhead, num_running: int, num_waiting: int) -> None:
        """Record the batches of all of them that are not empty."""
        num_slots = len(ahead.counts)
        num_packed = len(self._latest) // LEAP.itemsize
        first = ahead.first_call % num_slots
        shared = [num_packed, first, ahead.num_calls, num_running, num_waiting, ahead.num_free]
        self._shared.fromlist(shared + ahead.counts + ahead.contexts + ahead.num_back)
        self._starts_s.fromlist(ahead.starts_s)
        self._durations_s.fromlist(ahead.durations_s)
        self._num_taken.fromlist(ahead.num_taken)
        self._num_slots = num_slots
        if len(self._starts_s) >= ROWS_AT_ONCE:
            self._flush()

    def _put_away(self, rows: Rows) -> None:
        super()._put_away(rows)
        self.blocks_so_far[-1].note_num_back(np.frombuffer(self._num_back, dtype=np.uint8))
        self._num_back = bytearray()

    def _flush(self) -> None:
        if self._shared:
            self._merge()
            self._clear()
        super()._flush()

    def _merge(self) -> None:
        """Make the rows of calls, and put them among the packed ones."""
        num_slots = self._num_slots
        shared = np.frombuffer(self._shared, np.int64).reshape(-1, NUM_SHARED + 3 * num_slots)
        num_packed, first, num_calls, num_running, num_waiting, num_free = shared[:, :NUM_SHARED].T
        of_call = np.repeat(np.arange(len(shared)), num_calls)
        number = np.arange(len(of_call)) - np.repeat(np.cumsum(num_calls) - num_calls, num_calls)
        place = NUM_SHARED + (first[of_call] + number) % num_slots
        num_decodes = shared[of_call, place]
        ran = np.flatnonzero(num_decodes)
        of_call, number, place, num_decodes = of_call[ran], number[ran], place[ran], num_decodes[ran]
        rows = np.zeros(len(ran), dtype=LEAP)
        rows["num_steps"] = 1
        rows["num_decodes"] = rows["num_sampled"] = rows["num_continued"] = num_decodes
        rows["num_running"], rows["num_waiting"] = num_running[of_call], num_waiting[of_call]
        taken = np.cumsum(np.frombuffer(self._num_taken, np.int64))
        taken_before = np.append(0, taken)[np.cumsum(num_calls) - num_calls]
        rows["num_free_blocks"] = (num_free + taken_before)[of_call] - taken[ran]
        rows["decode_context_tokens"] = shared[of_call, place + num_slots] + number // num_slots * num_decodes
        rows["start_s"] = np.frombuffer(self._starts_s)[ran]
        rows["linear_s"] = np.frombuffer(self._durations_s)[ran]
        num_busy = (shared[:, NUM_SHARED : NUM_SHARED + num_slots] > 0).sum(axis=1)
        num_back = np.where(number < num_slots, shared[of_call, place + 2 * num_slots], num_busy[of_call])
        places = num_packed[of_call] + np.arange(len(rows))
        as_bytes = np.dtype((np.void, LEAP.itemsize))
        packed = np.frombuffer(self._latest, dtype=as_bytes)
        self._latest = bytearray(_among(packed, rows.view(as_bytes), places).tobytes())
        self._num_back = bytearray(_among(np.frombuffer(self._num_back, np.uint8), num_back.astype(np.uint8), places))


def _among(others: NDArray[Any], values: NDArray[Any], places: Ints) -> NDArray[Any]:
    """The values in those places, the others in order in what is left."""
    found = np.empty(len(others) + len(values), dtype=others.dtype)
    are_left = np.ones(len(found), dtype=np.bool_)
    are_left[places] = False
    found[places], found[are_left] = values, others
    return found
