"""Calls of the scheduler that only decode, worked out one after the other without a look at any request: a leap over pipeline stages.

While decodes rotate and nobody comes, finishes or lacks a block, when each call is made, when its batch passes each stage and when it comes back
follows from numbers: a batch begins when the first stage is free and its tokens are sampled, leaves each stage after the one before it,
and the call after the next batch's return follows. It is what launching and collecting would do, sum by sum.
"""

from bisect import bisect_left
from math import inf
from typing import Final

from sim.engine.config import SchedulerConfig
from sim.engine.walking.batch import Batch
from sim.engine.walking.call_rows import CallRows
from sim.engine.walking.device import DecodesAlone, Device
from sim.engine.walking.modes import Modes
from sim.engine.walking.rotation import Rotation, Slot

MOST_CALLS: Final = 1_024
MOST_PLANNED: Final = 64
"""Calls of a plan, which whoever comes cuts."""
TimesS = tuple[list[float], list[float], list[float]]
"""Until when each stage is taken, how long it has run, and until when each slot samples."""
NO_TIMES: TimesS = ([], [], [])


class Turn:
    """A slot while its calls are worked out: its decodes, the sum of their contexts after the next call, and the blocks that they begin by round.

    Behind it comes the turn of the slot that is `following`. `more_tokens` are its decodes, by which the sum grows each round.
    """

    __slots__ = ("boundaries", "context_tokens", "decodes", "following", "more_tokens", "num_decodes", "round", "slot")
    following: "Turn"

    def __init__(self, slot: Slot, decodes: DecodesAlone) -> None:
        self.slot = slot
        self.decodes = decodes
        self.num_decodes = 0
        self.more_tokens = self.context_tokens = 0.0
        self.boundaries: list[int] = []
        self.round = 0

    def count(self, num_decodes: int, context_tokens: int) -> None:
        """So many decode, at least one, with that sum of contexts after the next call."""
        self.num_decodes = num_decodes
        self.more_tokens, self.context_tokens = float(num_decodes), float(context_tokens)
        self.decodes.count(num_decodes)


class FirstCall:
    """A slot's first one of some calls: its decodes, the sum of their contexts after it, when its batch begins, and how many batches that comes after the slot's last one."""

    __slots__ = ("context_tokens", "num_back", "num_decodes", "start_s")

    def __init__(self) -> None:
        self.num_decodes = self.context_tokens = self.num_back = 0
        self.start_s = 0.0


class InFlight:
    """When a batch begins and ends that may not be back; behind it was launched the `following` one, and behind the latest comes the oldest."""

    __slots__ = ("end_s", "following", "start_s")
    following: "InFlight"

    def __init__(self) -> None:
        self.start_s = self.end_s = 0.0


class CallsAhead:
    """So many calls from `first_call` on; those that run a batch are rows of `rows`, from `first_row` on. `firsts` are those of each slot, in order.

    Of `num_free` blocks `num_left` are left. Each call waits for the batch that was launched `num_before` calls before, the last one until `back_s`;
    the `latest` that was launched stands in a ring with as many before it. The call after them is made at `next_s`.

    A plan has no rows yet. It tells of each of its calls when it is made, until when it waits, when its batch ends, the blocks that this takes and how
    long it runs, and which batches begin later than their slots' last ones end; the device then stands at `times_s`.

    Call `ending`, if there is one, brings last tokens, and the last one waits for its batch. If that is the next call of the same slot, it is
    `lessened`: it runs but `num_others` decodes, whose contexts are then `others_tokens` together.
    """

    __slots__ = (
        "back_s", "backs_s", "called_s", "durations_s", "ending", "ends_s", "first_call", "first_row", "firsts", "is_plan", "latest", "lessened",
        "next_s", "num_before", "num_calls", "num_free", "num_left", "num_others", "num_slots", "others", "others_tokens", "rows", "taken",
        "times_s",
    )  # fmt: skip

    def __init__(self, rows: CallRows, num_slots: int, num_before: int, *, is_plan: bool) -> None:
        self.rows = rows
        self.num_slots = num_slots
        self.num_before = num_before
        self.is_plan = is_plan
        self.firsts = [FirstCall() for _ in range(num_slots)]
        ring = [InFlight() for _ in range(num_before + 1)]
        for number, batch in enumerate(ring):
            batch.following = ring[(number + 1) % len(ring)]
        self.latest = ring[-1]
        self.called_s: list[float] = []
        self.backs_s: list[float] = []
        self.ends_s: list[float] = []
        self.taken: list[int] = []
        self.durations_s: list[float] = []
        self.others: dict[int, float] = {}
        self.times_s = NO_TIMES
        self.begin(0, 0)

    def begin(self, first_call: int, num_free: int) -> None:
        """None so far."""
        self.first_call = first_call
        self.first_row = self.rows.num_rows
        self.num_calls = 0
        self.num_free = self.num_left = num_free
        self.back_s = self.next_s = -inf
        self.ending = self.lessened = -1
        self.num_others = self.others_tokens = 0

    @property
    def oldest_end_s(self) -> float:
        """When the batch ends that the next call waits for, of those launched before it."""
        return self.latest.following.following.end_s

    def launch(self, start_s: float, end_s: float) -> None:
        """A batch is on its way, from then to then."""
        latest = self.latest = self.latest.following
        latest.start_s, latest.end_s = start_s, end_s

    def note_start(self, number: int, start_s: float) -> None:
        """When the next batch begins, of a slot's first call or of one that begins later than its slot's last one ends."""
        if number < self.num_slots:
            self.firsts[number].start_s = start_s
        elif self.is_plan:
            self.others[number] = start_s
        else:
            self.rows.next_begins(start_s)

    def note_planned(self, called_s: float, back_s: float, end_s: float, num_taken: int, duration_s: float) -> None:
        """One more call of a plan."""
        self.called_s.append(called_s)
        self.backs_s.append(back_s)
        self.ends_s.append(end_s)
        self.taken.append(num_taken)
        self.durations_s.append(duration_s)

    def add_planned_rows(self) -> None:
        """The calls of a plan are made: they are rows from now on."""
        rows = self.rows
        self.first_row = rows.num_rows
        for number in range(self.num_calls):
            if self.num_decodes(number):
                if number in self.others:
                    rows.next_begins(self.others[number])
                if self.taken[number]:
                    rows.next_takes(self.taken[number])
                rows.add(self.ends_s[number], self.durations_s[number])

    def num_taken(self, num_calls: int) -> int:
        """Blocks that the batches of the first so many calls of a plan take."""
        return sum(self.taken[:num_calls])

    def num_begun(self, now_s: float) -> int:
        """How many of a plan are made before that time."""
        return bisect_left(self.called_s, now_s)

    def num_decodes(self, number: int) -> int:
        if number == self.lessened:
            return self.num_others
        return self.firsts[number % self.num_slots].num_decodes


class LookAhead:
    """Works out calls, for as long as decodes rotate undisturbed."""

    def __init__(
        self, rotation: Rotation, device: Device, config: SchedulerConfig, modes: Modes, rows: CallRows
    ) -> None:
        self.rotation = rotation
        self._rows = rows
        rows.is_timed = not device.has_stages
        self._device = device
        self._num_groups = sum([not group.keeps_states for group in config.kv_groups])
        self._block_size = config.block_size
        self._token_budget = config.token_budget
        self._idle_sleep_s = modes.idle_sleep_s
        self.turns = [Turn(slot, device.decodes_alone()) for slot in rotation.slots]
        for number, turn in enumerate(self.turns):
            turn.following = self.turns[(number + 1) % len(self.turns)]
        self._ahead: CallsAhead | None = None

    @property
    def times_s(self) -> TimesS:
        """All that working out moves on: to be set again where it was but tried."""
        stages = self._device.stages
        return (
            [stage.free_s for stage in stages],
            [stage.busy_s for stage in stages],
            [slot.sampled_s for slot in self.rotation.slots],
        )

    @times_s.setter
    def times_s(self, times_s: TimesS) -> None:
        free_s, busy_s, sampled_s = times_s
        for number, stage in enumerate(self._device.stages):
            stage.free_s, stage.busy_s = free_s[number], busy_s[number]
        for number, slot in enumerate(self.rotation.slots):
            slot.sampled_s = sampled_s[number]

    def num_certain(self, first_call: int, in_flight: list[Batch], *, is_plan: bool) -> int:
        """How many calls only decode for certain, up to that which a last token comes of, or that after which a request may finish.

        Or, in a plan, that which waits for a first token: others may ask when it came before all of the plan is done.
        """
        rotation = self.rotation
        if rotation.walked:
            return 0
        limit, num_slots, is_idle = MOST_CALLS, len(rotation.slots), True
        for number, slot in enumerate(rotation.slots):
            decodes = slot.decodes
            if decodes.count:
                if decodes.count > self._token_budget:
                    return 0
                is_idle = False
                limit = min(limit, decodes.ends.next_pass * num_slots + number - first_call + 1)
        if rotation.windows is not None:
            limit = min(limit, rotation.windows.next_begin + 1 - first_call)
        limit = min(limit, rotation.pauses.next_pass - first_call)
        if is_idle:
            return 0
        for number, batch in enumerate(in_flight):
            if batch.may_finish or (is_plan and batch.brings_first_token):
                return min(limit, number + 1)
        return limit

    def calls(self, first_call: int, in_flight: list[Batch], num_free: int, *, is_plan: bool) -> CallsAhead:
        """Those to be worked out next, none so far."""
        rotation, turns = self.rotation, self.turns
        ahead = self._ahead
        if is_plan or ahead is None:
            ahead = CallsAhead(self._rows, len(turns), len(in_flight), is_plan=is_plan)
            if not is_plan:
                self._ahead = ahead
        ahead.begin(first_call, num_free)
        for batch in in_flight:
            ahead.latest = ahead.latest.following
            ahead.latest.end_s = batch.end_s
        turn = turns[rotation.place(first_call)]
        at, number = rotation.round(first_call), rotation.num_launched
        for first in ahead.firsts:
            slot = turn.slot
            decodes = slot.decodes
            num_decodes, context_tokens = decodes.count, decodes.context_sum(at)
            first.num_decodes, first.context_tokens = num_decodes, context_tokens
            first.num_back = number - slot.last_number
            turn.num_decodes = num_decodes
            if num_decodes:
                number += 1
                turn.count(num_decodes, context_tokens)
                turn.boundaries = decodes.block_boundaries
                turn.round = at % self._block_size
            turn = turn.following
            if turn is turns[0]:
                at += 1
        return ahead

    def work_out(
        self, ahead: CallsAhead, most: int, until_s: float, told_s: float, now_s: float, num_blocks_to_admit: int
    ) -> None:
        """Add the calls made before `until_s`, up to so many in all, as far as there are blocks; the device runs their batches.

        The last one is the first whose batch is back at `told_s` or later. None leaves so many blocks free that somebody may be admitted.
        """
        device, windows = self._device, self.rotation.windows
        first_stage, last_stage = device.stages[0], device.stages[-1]
        is_plan = ahead.is_plan
        rows, num_slots, latest = ahead.rows, ahead.num_slots, ahead.latest
        num_calls, num_free, back_s = ahead.num_calls, ahead.num_left, ahead.back_s
        turn = self.turns[self.rotation.place(ahead.first_call + num_calls)]
        may_admit = windows is not None or num_free >= num_blocks_to_admit
        while num_calls < most and now_s < until_s and back_s < told_s:
            if turn.num_decodes:
                num_taken = turn.boundaries[turn.round]
                if num_taken or may_admit:
                    num_taken *= self._num_groups
                    num_passed = windows.num_blocks(ahead.first_call + num_calls, 1) if windows is not None else 0
                    if num_taken > num_free or num_free - num_taken + num_passed >= num_blocks_to_admit:
                        break
                    num_taken -= num_passed
                    num_free -= num_taken
                    if not is_plan:
                        rows.next_takes(num_taken)
                turn.round = turn.round + 1 if turn.round + 1 < self._block_size else 0
                slot = turn.slot
                sampled_s = slot.sampled_s
                start_s = max(now_s, first_stage.free_s)
                start_s = max(start_s, sampled_s)
                duration_s = turn.decodes.run(turn.context_tokens, start_s)
                turn.context_tokens += turn.more_tokens
                end_s = slot.sampled_s = last_stage.free_s
                if start_s != sampled_s or num_calls < num_slots:
                    ahead.note_start(num_calls, start_s)
                slept_s = 0.0
                if not is_plan:
                    rows.add(end_s, duration_s)
            else:
                num_taken, duration_s, slept_s = 0, 0.0, self._idle_sleep_s
                start_s = end_s = max(now_s, last_stage.free_s)
            latest = latest.following
            latest.start_s, latest.end_s = start_s, end_s
            back_s = max(now_s, latest.following.end_s)
            if is_plan:
                ahead.note_planned(now_s, back_s, end_s, num_taken, duration_s)
            now_s = back_s + slept_s
            num_calls += 1
            turn = turn.following
        ahead.num_calls, ahead.num_left, ahead.latest = num_calls, num_free, latest
        ahead.back_s, ahead.next_s = back_s, now_s
        if is_plan:
            ahead.times_s = self.times_s

    def go_on(self, ahead: CallsAhead, most: int, until_s: float, num_blocks_to_admit: int) -> None:
        """Behind a call that last tokens come of, add those up to the one that waits for them, likewise; nobody else may finish meanwhile."""
        ending = ahead.num_calls - 1
        call, behind = ahead.first_call + ending, ahead.num_calls + ahead.num_before
        brings_last_tokens = self.rotation.slot(call).decodes.ends.next_pass == self.rotation.round(call)
        if not brings_last_tokens or not 0 < ahead.num_before <= most - ahead.num_calls:
            return
        lessened = ending + ahead.num_slots
        self.work_out(ahead, min(behind, lessened), until_s, inf, ahead.next_s, num_blocks_to_admit)
        if ahead.num_calls == lessened < behind and self._lessen(ahead, lessened):
            self.work_out(ahead, behind, until_s, inf, ahead.next_s, num_blocks_to_admit)
            if ahead.num_calls == lessened:
                ahead.lessened = -1
        if ahead.num_calls == behind:
            ahead.ending = ending

    def _lessen(self, ahead: CallsAhead, number: int) -> bool:
        """The next call of that number is without the decodes that end in its slot; False if nobody decodes then."""
        call, size = ahead.first_call + number, self._block_size
        turn, at = self.turns[self.rotation.place(call)], self.rotation.round(call)
        decodes = turn.slot.decodes
        ended = decodes.ends.peek_next()
        turn.num_decodes -= len(ended)
        num_decodes = 0
        for other in self.turns:
            num_decodes += other.num_decodes
        if num_decodes == 0:
            return False
        context_tokens, turn.boundaries = decodes.context_sum_without(at, ended), decodes.block_boundaries.copy()
        for request in ended:
            turn.boundaries[(request.epoch + 1) % size] -= 1
        if turn.num_decodes:
            turn.count(turn.num_decodes, context_tokens)
        ahead.lessened, ahead.num_others, ahead.others_tokens = number, turn.num_decodes, context_tokens
        return True
