"""The rows of batches that calls worked out together, kept as what they have in common and their times until they are put away."""

from collections.abc import Callable
from struct import Struct, pack
from typing import Final

import numpy as np

from sim.engine.columns import Floats, Ints
from sim.engine.leap_block import COUNTS, Column, LeapBlock
from sim.engine.leap_log import LeapLog
from sim.engine.narrow import ROWS_AT_ONCE, Narrow, Rows, Shared
from sim.engine.walking.calls_ahead import NUM_FACTS, NUM_SHARED, PLACES, CallsAhead

CALLS_AT_ONCE = 4 * ROWS_AT_ONCE
PACKERS: Final[dict[int, Callable[..., bytes]]] = {}
"""By how many times they pack."""
SHARED: Final = tuple(name for name in COUNTS if name not in ("num_steps", "num_free_blocks"))
"""Of COUNTS those that calls have in common."""


class CallLog(LeapLog):
    """Packed rows, with how many batches back the last tokens of each lie; and calls between them, empty ones too."""

    def __init__(self) -> None:
        super().__init__()
        self._most_rows = CALLS_AT_ONCE
        self._num_slots = 1
        self._num_before = 0
        self._clear()

    def _clear(self) -> None:
        self._num_rows = 0
        self._latest = bytearray()
        self._num_back = bytearray()
        self._packed_rows: list[int] = []
        self._shared: list[int] = []
        self._taken: list[int] = []
        self._times_s: list[bytes] = []
        self._lessened: list[int] = []
        self._others: list[int] = []
        self._others_s: list[float] = []

    def next_goes_back(self, num_back: int) -> None:
        """How many batches, of the row that is added next."""
        self._num_back.append(num_back)
        self._packed_rows.append(self._num_rows)
        self._num_rows += 1

    def add_calls(self, ahead: CallsAhead, num_running: int, num_waiting: int) -> None:
        """Record the batches of all of them that are not empty."""
        row, num_calls = self._num_rows, ahead.num_calls
        self._num_slots, self._num_before = ahead.num_slots, ahead.num_before
        shared = ahead.shared
        shared[0], shared[1], shared[2] = row, num_calls, len(ahead.taken)
        shared[3], shared[4], shared[5] = num_running, num_waiting, ahead.num_free
        self._shared.extend(shared)
        self._times_s.append(_packed(ahead.ends_s[: ahead.num_before + num_calls]))
        if ahead.durations_s:
            self._times_s.append(_packed(ahead.durations_s))
        self._taken.extend(ahead.taken)
        if ahead.lessened >= 0:
            self._lessened.extend((row + ahead.lessened, ahead.num_others, ahead.others_tokens))
        if ahead.others:
            self._others.extend([row + number for number in ahead.others])
            self._others_s.extend(ahead.others_s)
        self._num_rows += num_calls
        if self._num_rows >= self._most_rows:
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
        """What rows share is in a table, with a place for each slot in some calls, and then one for each row that is packed, or lessened."""
        num_slots, packed_rows = self._num_slots, _ints(self._packed_rows)
        shared = _ints(self._shared).reshape(-1, NUM_SHARED + NUM_FACTS * num_slots)
        begins, num_calls, nums_of_taken, num_running, num_waiting, num_free = shared[:, :NUM_SHARED].T
        facts = shared[:, NUM_SHARED:].reshape(-1, num_slots, NUM_FACTS).transpose(2, 0, 1)
        counts, contexts, num_back = np.ascontiguousarray(facts)
        rows, num_rows = np.arange(self._num_rows), np.diff(np.concatenate(([0], begins[1:], [self._num_rows])))
        rounds = (rows - begins.repeat(num_rows)) // num_slots
        places = rows + (num_slots * np.arange(len(begins)) - begins).repeat(num_rows) - num_slots * rounds
        num_decodes = counts.take(places, mode="clip")
        context_tokens = contexts.take(places, mode="clip") + rounds * num_decodes
        lessened, num_others, others_tokens = _ints(self._lessened).reshape(-1, 3).T
        num_decodes[lessened], context_tokens[lessened] = num_others, others_tokens
        taken = np.zeros(self._num_rows, np.int64)
        entries = _ints(self._taken)
        takers = (entries + PLACES // 2) // PLACES
        taken[takers + begins.repeat(nums_of_taken)] = entries - takers * PLACES
        num_free = num_free - taken[begins]
        taken = np.cumsum(taken)
        free = (num_free + taken[begins]).repeat(num_rows) - taken
        goes_back = np.count_nonzero(counts, axis=1).repeat(num_rows)
        for number in range(num_slots):  # its slot's last batch was launched before these calls
            is_long = num_calls > number
            goes_back[begins[is_long] + number] = num_back[is_long, number]
        starts_s, durations_s = self._starts_and_durations_s(rows, num_rows, begins, num_calls)

        starts_s[packed_rows], durations_s[packed_rows] = packed["start_s"], packed["linear_s"]
        context_tokens[packed_rows], free[packed_rows] = packed["decode_context_tokens"], packed["num_free_blocks"]
        goes_back[packed_rows] = packed_back
        places[packed_rows] = counts.size + np.arange(len(packed))
        places[lessened] = counts.size + len(packed) + np.arange(len(lessened))
        if not (counts.all() and num_others.all()):
            num_decodes[packed_rows] = 1
            ran = np.flatnonzero(num_decodes > 0)
            places, context_tokens = places.take(ran, mode="clip"), context_tokens.take(ran, mode="clip")
            free, goes_back = free.take(ran, mode="clip"), goes_back.take(ran, mode="clip")
            starts_s, durations_s = starts_s.take(ran, mode="clip"), durations_s.take(ran, mode="clip")

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

    def _starts_and_durations_s(
        self, rows: Ints, num_rows: Ints, begins: Ints, num_calls: Ints
    ) -> tuple[Floats, Floats]:
        """Those of the rows, of which so many belong to each of some calls: theirs, and what follows until the next."""
        has_stages = self._num_slots > 1
        num_times = self._num_before + num_calls * (1 if has_stages else 2)
        firsts = np.cumsum(num_times) - num_times
        ends = rows + (firsts + self._num_before - begins).repeat(num_rows)
        times_s = np.frombuffer(b"".join(self._times_s))
        starts_s = times_s.take(ends - self._num_slots, mode="clip")
        starts_s[_ints(self._others)] = self._others_s
        if has_stages:
            return starts_s, times_s.take(ends, mode="clip") - starts_s
        return starts_s, times_s.take(ends + num_calls.repeat(num_rows), mode="clip")


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


def _packed(times_s: list[float]) -> bytes:
    count = len(times_s)
    packer = PACKERS.get(count)
    if packer is None:
        packer = PACKERS[count] = Struct(f"{count}d").pack
    return packer(*times_s)


def _ints(values: list[int]) -> Ints:
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)  # three times as fast as numpy reads a list
