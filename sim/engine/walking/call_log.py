"""The rows of batches that calls worked out together, kept as what they have in common and their times until they are put away."""

from collections.abc import Callable
from functools import cache
from struct import Struct, pack
from typing import Final

import numpy as np

from sim.engine.columns import Ints
from sim.engine.leap_block import COUNTS, Column, LeapBlock
from sim.engine.leap_log import LeapLog
from sim.engine.narrow import ROWS_AT_ONCE, Narrow, Rows, Shared
from sim.engine.walking.calls_ahead import NUM_FACTS, CallsAhead

CALLS_AT_ONCE = 4 * ROWS_AT_ONCE
FLOAT_BYTES: Final = 8
NUM_SHARED = 7
"""The row of the first of some calls, their number, running requests, waiting ones, free blocks, where starts and ends begin among the times;
then the facts of each slot."""


class CallLog(LeapLog):
    """Packed rows, with how many batches back the last tokens of each lie; and calls between them, empty ones too."""

    def __init__(self) -> None:
        super().__init__()
        self._num_slots = 1
        self._clear()

    def _clear(self) -> None:
        self._num_rows = 0
        self._latest = bytearray()
        self._num_back = bytearray()
        self._packed_rows: list[int] = []
        self._shared: list[int] = []
        self._num_taken: list[int] = []
        self._times_s = bytearray()
        self._other_rows: list[int] = []
        self._others_s = bytearray()

    def next_goes_back(self, num_back: int) -> None:
        """How many batches, of the row that is added next."""
        self._num_back.append(num_back)
        self._packed_rows.append(self._num_rows)
        self._num_taken.append(0)
        self._num_rows += 1

    def add_calls(self, ahead: CallsAhead, num_running: int, num_waiting: int) -> None:
        """Record the batches of all of them that are not empty."""
        row, num_calls = self._num_rows, ahead.num_calls
        starts_at = len(self._times_s) // FLOAT_BYTES - ahead.lag
        self._times_s += _packer(len(ahead.ends_s))(*ahead.ends_s)
        if ahead.durations_s:
            self._times_s += _packer(num_calls)(*ahead.durations_s)
        ends_at = len(self._times_s) // FLOAT_BYTES - num_calls
        self._shared.extend([row, num_calls, num_running, num_waiting, ahead.num_free, starts_at, ends_at])
        self._shared.extend(ahead.facts)
        if ahead.others:
            self._other_rows.extend([row + number for number in ahead.others])
            self._others_s += _packer(len(ahead.others_s))(*ahead.others_s)
        self._num_taken.extend(ahead.num_taken)
        self._num_slots = ahead.num_slots
        self._num_rows += num_calls
        if self._num_rows >= CALLS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if self._num_rows:
            packed = self._packed()
            num_back = np.array(self._num_back, np.int64)
            if self._shared:
                self.blocks_so_far.append(self._block(packed, num_back))
            else:
                self.blocks_so_far.append(LeapBlock.of(packed))
                self.blocks_so_far[-1].note_num_back(num_back)
            self._clear()

    def _block(self, packed: Rows, packed_back: Ints) -> LeapBlock:
        """What rows share is in a table, with a place for each slot in some calls, and then one for each packed row."""
        num_slots, num_rows, packed_rows = self._num_slots, self._num_rows, _ints(self._packed_rows)
        shared = _ints(self._shared).reshape(-1, NUM_SHARED + NUM_FACTS * num_slots)
        begins, num_calls, num_running, num_waiting, num_free, starts_at, ends_at = shared[:, :NUM_SHARED].T
        facts = shared[:, NUM_SHARED:].reshape(-1, num_slots, NUM_FACTS).transpose(2, 0, 1)
        counts, contexts, num_back = np.ascontiguousarray(facts)
        leap = np.repeat(np.arange(len(shared)), np.diff(begins[1:], prepend=0, append=num_rows))
        call = np.arange(num_rows) - begins.take(leap)
        rounds = call // num_slots
        places = call + (leap - rounds) * num_slots
        num_decodes = counts.take(places, mode="clip")
        context_tokens = contexts.take(places, mode="clip") + rounds * num_decodes
        taken = np.cumsum(_ints(self._num_taken))
        free = (num_free + np.append(0, taken)[begins]).take(leap) - taken
        goes_back = (counts > 0).sum(axis=1).take(leap)
        for number in range(num_slots):  # its slot's last batch was launched before these calls
            firsts = begins[num_calls > number] + number
            goes_back[firsts] = num_back.take(places[firsts])
        times_s = np.frombuffer(self._times_s)
        starts_s = times_s.take(call + starts_at.take(leap), mode="clip")
        starts_s[_ints(self._other_rows)] = np.frombuffer(self._others_s)
        durations_s = times_s.take(call + ends_at.take(leap), mode="clip")
        if num_slots > 1:
            durations_s -= starts_s

        starts_s[packed_rows], durations_s[packed_rows] = packed["start_s"], packed["linear_s"]
        context_tokens[packed_rows], free[packed_rows] = packed["decode_context_tokens"], packed["num_free_blocks"]
        goes_back[packed_rows] = packed_back
        places[packed_rows] = counts.size + np.arange(len(packed))
        if not counts.all():
            num_decodes[packed_rows] = 1
            ran = num_decodes > 0
            places, context_tokens, free, goes_back = places[ran], context_tokens[ran], free[ran], goes_back[ran]
            starts_s, durations_s = starts_s[ran], durations_s[ran]

        of_calls = {
            "num_decodes": counts,
            "num_sampled": counts,
            "num_continued": counts,
            "num_running": num_running[:, np.newaxis],
            "num_waiting": num_waiting[:, np.newaxis],
        }
        places = places.astype(np.min_scalar_type(counts.size + len(packed)))
        table = np.empty(counts.size + len(packed), np.int64)
        integers: dict[str, Column] = {}
        for name in COUNTS:
            table[: counts.size].reshape(counts.shape)[:] = of_calls.get(name, 0)
            table[counts.size :] = packed[name]
            integers[name] = Shared(Narrow(table), places)
        integers["num_steps"] = Narrow(np.ones(len(places), np.int8))
        integers["num_free_blocks"], integers["decode_context_tokens"] = Narrow(free), Narrow(context_tokens)
        block = LeapBlock.of_steps(integers, starts_s, durations_s)
        block.note_num_back(goes_back)
        return block


@cache
def _packer(count: int) -> Callable[..., bytes]:
    return Struct(f"{count}d").pack


def _ints(values: list[int]) -> Ints:
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)  # three times as fast as numpy reads a list
