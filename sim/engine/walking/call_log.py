"""The rows of batches that calls worked out together, kept as what they have in common and their times until they are put away."""

from struct import Struct
from typing import Final

import numpy as np

from sim.engine.columns import Ints
from sim.engine.leap_block import COUNTS, Column, LeapBlock
from sim.engine.leap_log import LeapLog
from sim.engine.narrow import ROWS_AT_ONCE, Narrow, Rows, Shared
from sim.engine.walking.call_rows import CallRows, ints
from sim.engine.walking.calls_ahead import CallsAhead

CALLS_AT_ONCE = 4 * ROWS_AT_ONCE
pack_calls: Final = Struct("6q").pack
pack_first: Final = Struct("3qd").pack
NUM_SHARED: Final = 6
"""The first row of some calls, how many they are, of how many slots, running requests, waiting ones and free blocks; then come the facts of each slot's first call."""
NUM_FACTS: Final = 4
NO_FIRST: Final = bytes(8 * NUM_FACTS)
"""Of a slot in which nobody decodes, behind those in which somebody does."""
SHARED: Final = tuple(name for name in COUNTS if name not in ("num_steps", "num_free_blocks"))
"""Of COUNTS those that calls have in common."""


class CallLog(LeapLog):
    """Packed rows, with how many batches back the last tokens of each lie; and between them those of calls, in `rows`, where all have a place."""

    def __init__(self) -> None:
        super().__init__()
        self._most_rows = CALLS_AT_ONCE
        self._num_slots = 1
        self.rows = CallRows()
        self._clear()

    def _clear(self) -> None:
        self.rows.forget()
        self._latest = bytearray()
        self._num_back = bytearray()
        self._packed_rows: list[int] = []
        self._calls: list[bytes] = []
        self._lessened: list[int] = []

    def next_goes_back(self, num_back: int) -> None:
        """How many batches, of the row that is added next."""
        self._num_back.append(num_back)
        self._packed_rows.append(self.rows.num_rows)
        self.rows.add(0.0, 0.0)

    def add_calls(self, ahead: CallsAhead, num_running: int, num_waiting: int) -> None:
        """Record the batches of all of them that are not empty."""
        if ahead.is_plan:
            ahead.add_planned_rows()
        row, calls = ahead.first_row, self._calls
        num_rows = self.rows.num_rows - row
        if num_rows == 0:
            return
        num_slots = 0
        for first in ahead.firsts:
            num_slots += first.num_decodes > 0
        calls.append(pack_calls(row, num_rows, num_slots, num_running, num_waiting, ahead.num_free))
        for first in ahead.firsts:
            if first.num_decodes:
                calls.append(pack_first(first.num_decodes, first.context_tokens, first.num_back, first.start_s))
        for _ in range(ahead.num_slots - num_slots):
            calls.append(NO_FIRST)
        self._num_slots = ahead.num_slots
        if ahead.lessened >= 0 and ahead.num_others:  # the last call of all
            self._lessened.extend((self.rows.num_rows - 1, ahead.num_others, ahead.others_tokens))
        if self.rows.num_rows >= self._most_rows:
            self._flush()

    def _flush(self) -> None:
        if self.rows.num_rows:
            packed = self._packed()
            num_back = np.array(self._num_back, np.int64)
            if self._calls:
                self.blocks_so_far.append(self._block(packed, num_back))
            else:
                self.blocks_so_far.append(LeapBlock.of(packed))
                self.blocks_so_far[-1].note_num_back(num_back)
            self._clear()

    def _block(self, packed: Rows, packed_back: Ints) -> LeapBlock:
        """What rows share is in a table, with a place for each slot in some calls, and then one for each row that is packed, or lessened."""
        most_slots, num_all, packed_rows = self._num_slots, self.rows.num_rows, ints(self._packed_rows)
        calls = np.frombuffer(b"".join(self._calls), np.int64).reshape(-1, NUM_SHARED + NUM_FACTS * most_slots)
        begins, num_in_calls, num_slots, num_running, num_waiting, num_free = calls[:, :NUM_SHARED].T
        facts = calls[:, NUM_SHARED:].reshape(-1, most_slots, NUM_FACTS).transpose(2, 0, 1)
        counts, contexts, num_back, firsts_s = np.ascontiguousarray(facts)
        num_rows = np.diff(np.concatenate(([0], begins[1:], [num_all])))
        slots = num_slots.repeat(num_rows)
        places = np.arange(num_all) - begins.repeat(num_rows)
        rounds = places // most_slots
        few = np.flatnonzero(slots < most_slots)
        rounds[few] = places[few] // slots[few]
        places -= slots * rounds
        places += (most_slots * np.arange(len(begins))).repeat(num_rows)
        num_decodes = counts.take(places, mode="clip")
        context_tokens = contexts.take(places, mode="clip")
        context_tokens += rounds * num_decodes
        lessened, num_others, others_tokens = ints(self._lessened).reshape(-1, 3).T
        context_tokens[lessened] = others_tokens
        goes_back = slots.copy()
        ends_s = self.rows.ends_s.all()
        starts_s = np.empty(num_all)
        starts_s[most_slots:] = ends_s[:-most_slots]
        starts_s[few] = ends_s.take(few - slots[few], mode="clip")
        for number in range(most_slots):  # its slot's last batch was launched before these calls
            has_first = np.minimum(num_in_calls, num_slots) > number
            first_rows = begins[has_first] + number
            goes_back[first_rows] = num_back[has_first, number]
            starts_s[first_rows] = firsts_s.view(np.float64)[has_first, number]
        starts_s[self.rows.others] = self.rows.others_s
        durations_s = ends_s - starts_s if most_slots > 1 else self.rows.durations_s.all()
        taken = self.rows.blocks()
        num_free = num_free - taken[begins]
        taken = np.cumsum(taken)
        free = (num_free + taken[begins]).repeat(num_rows) - taken

        starts_s[packed_rows], durations_s[packed_rows] = packed["start_s"], packed["linear_s"]
        context_tokens[packed_rows], free[packed_rows] = packed["decode_context_tokens"], packed["num_free_blocks"]
        goes_back[packed_rows] = packed_back
        places[packed_rows] = counts.size + np.arange(len(packed))
        places[lessened] = counts.size + len(packed) + np.arange(len(lessened))

        in_calls = np.searchsorted(begins, lessened, "right") - 1
        decodes = (counts, num_others)
        of_calls = {
            "num_decodes": decodes,
            "num_sampled": decodes,
            "num_continued": decodes,
            "num_running": (num_running[:, np.newaxis], num_running[in_calls]),
            "num_waiting": (num_waiting[:, np.newaxis], num_waiting[in_calls]),
        }
        integers = _shared(of_calls, counts.shape, len(lessened), packed, places)
        integers["num_steps"] = Narrow(np.ones(len(places), np.int8))
        integers["num_free_blocks"], integers["decode_context_tokens"] = Narrow(free), Narrow(context_tokens)
        block = LeapBlock.of_steps(integers, starts_s, durations_s)
        block.note_num_back(goes_back)
        return block


def _shared(
    of_calls: dict[str, tuple[Ints, Ints]], shape: tuple[int, ...], num_lessened: int, packed: Rows, places: Ints
) -> dict[str, Column]:
    """A table for each of SHARED: of calls by slot, in that shape, of packed rows and of lessened ones; with the place in it of each row."""
    num_of_calls = shape[0] * shape[1]
    num_before_lessened, nothing = num_of_calls + len(packed), np.zeros(1, np.int64)
    table = np.empty(num_before_lessened + num_lessened, np.int64)
    narrow_places = places.astype(np.min_scalar_type(len(table)))
    integers: dict[str, Column] = {}
    for name in SHARED:
        by_slot, of_lessened = of_calls.get(name, (nothing, nothing))
        table[:num_of_calls].reshape(shape)[:] = by_slot
        table[num_of_calls:num_before_lessened] = packed[name]
        table[num_before_lessened:] = of_lessened
        integers[name] = Shared(Narrow(table), narrow_places)
    return integers
