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
from sim.engine.walking.device import DecodesAlone, Device
from sim.engine.walking.modes import Modes
from sim.engine.walking.rotation import Rotation, Slot

MOST_CALLS: Final = 1_024
MOST_PLANNED: Final = 64
"""Calls of a plan, which whoever comes cuts."""
TimesS = tuple[list[float], list[float], list[float]]
"""Until when each stage is taken, how long it has run, and until when each slot samples."""
NO_TIMES: TimesS = ([], [], [])
NUM_SHARED: Final = 6
"""The row of the first of some calls, their number, how many of them take blocks, running requests, waiting ones and free blocks; then come the
facts of each slot.
"""
PLACES: Final = 1 << 20
"""The number of a call, so many times, stands in one integer with how many blocks its batch takes, which are fewer than half as many; compiled
code multiplies larger ones at ten times the cost.
"""
NUM_FACTS: Final = 3
"""Its decodes in the first of its calls, the sum of their contexts after it, and how many batches it comes after the slot's last one."""


class Turn:
    """A slot while its calls are worked out: its decodes, the sum of their contexts after the next call, and the blocks that they begin by round.

    Behind it comes the turn of the slot that is `following`.
    """

    __slots__ = ("boundaries", "context_tokens", "decodes", "following", "num_decodes", "round", "slot")
    decodes: DecodesAlone
    following: "Turn"

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.num_decodes = 0
        self.context_tokens = 0.0
        self.boundaries: list[int] = []
        self.round = 0


class CallsAhead:
    """So many calls from `first_call` on; `shared` is what they have in common, with the facts of each slot in the order of its first call.

    Of `num_free` blocks `num_left` are left; `taken` has the calls whose batches take blocks, with how many, less what windows give back
    (PLACES). The first entries of `ends_s` are when the `num_before` batches in flight before, and then theirs, end; each call waits for the next of
    these, the last one until `back_s`. The batch of a call begins as its slot's last one ends, `lag` places before the one that it waits for; that of
    one among `others` begins at the time in `others_s`. Told besides are when each call of a plan is made, and how long each batch runs of a device
    with a single stage. The call after them is made at `next_s`, and the device of a plan then stands at `times_s`.

    Call `ending`, if there is one, brings last tokens, and the last one waits for its batch. If that is the next call of the same slot, it is
    `lessened`: it runs but `num_others` decodes, whose contexts are then `others_tokens` together.
    """

    __slots__ = (
        "back_s", "called_s", "durations_s", "ending", "ends_s", "first_call", "is_plan", "lag", "lessened", "next_s", "num_before", "num_calls",
        "num_free", "num_left", "num_others", "num_slots", "others", "others_s", "others_tokens", "shared", "taken", "times_s",
    )  # fmt: skip

    def __init__(self, most: int, num_slots: int, num_before: int, *, is_plan: bool) -> None:
        self.num_slots = num_slots
        self.num_before = num_before
        self.lag = num_slots - num_before
        self.is_plan = is_plan
        self.ends_s = [0.0] * (num_before + most)
        self.shared = [0] * (NUM_SHARED + NUM_FACTS * num_slots)
        self.taken: list[int] = []
        self.others: list[int] = []
        self.others_s: list[float] = []
        self.durations_s: list[float] = []
        self.called_s: list[float] = []
        self.times_s = NO_TIMES
        self.begin(0, 0)

    def begin(self, first_call: int, num_free: int) -> None:
        """None so far."""
        self.first_call = first_call
        self.num_calls = 0
        self.num_free = self.num_left = num_free
        self.back_s = self.next_s = -inf
        self.ending = self.lessened = -1
        self.num_others = self.others_tokens = 0
        if self.taken:
            self.taken = []
        if self.others:
            self.others, self.others_s = [], []
        if self.durations_s:
            self.durations_s = []

    def num_taken(self, num_calls: int) -> int:
        """Blocks that the batches of the first so many calls take."""
        num_blocks = 0
        for entry in self.taken:
            number = (entry + PLACES // 2) // PLACES
            if number < num_calls:
                num_blocks += entry - number * PLACES
        return num_blocks

    def num_begun(self, now_s: float) -> int:
        """How many of a plan are made before that time."""
        return bisect_left(self.called_s, now_s)

    def backs_s(self, number: int) -> float:
        """When the batch comes back that this one of a plan waits for."""
        return max(self.called_s[number], self.ends_s[number])

    def num_decodes(self, number: int) -> int:
        if number == self.lessened:
            return self.num_others
        return self.shared[NUM_SHARED + NUM_FACTS * (number % self.num_slots)]

    def start_s(self, number: int) -> float:
        """When its batch begins."""
        if self.num_decodes(number) == 0:
            return self.end_s(number)
        if self.others and number in self.others:
            return self.others_s[self.others.index(number)]
        return self.ends_s[number - self.lag]

    def end_s(self, number: int) -> float:
        """When its batch ends."""
        return self.ends_s[self.num_before + number]


class LookAhead:
    """Works out calls, for as long as decodes rotate undisturbed."""

    def __init__(self, rotation: Rotation, device: Device, config: SchedulerConfig, modes: Modes) -> None:
        self.rotation = rotation
        self._device = device
        self._num_groups = len(config.kv_groups)
        self._block_size = config.block_size
        self._token_budget = config.token_budget
        self._idle_sleep_s = modes.idle_sleep_s
        self.turns = [Turn(slot) for slot in rotation.slots]
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
            ahead = CallsAhead(MOST_PLANNED if is_plan else MOST_CALLS, len(turns), len(in_flight), is_plan=is_plan)
            if not is_plan:
                self._ahead = ahead
        ahead.begin(first_call, num_free)
        for place, batch in enumerate(in_flight):
            ahead.ends_s[place] = batch.end_s
        turn = turns[rotation.place(first_call)]
        at, number, shared = rotation.round(first_call), rotation.num_launched, ahead.shared
        for place in range(NUM_SHARED, len(shared), NUM_FACTS):
            slot = turn.slot
            decodes = slot.decodes
            num_decodes, context_tokens = decodes.count, decodes.context_sum(at)
            shared[place] = num_decodes
            shared[place + 1] = context_tokens
            shared[place + 2] = number - slot.last_number
            if num_decodes:
                number += 1
                turn.context_tokens = float(context_tokens)
                turn.decodes = self._device.decodes(num_decodes)
                turn.boundaries = decodes.block_boundaries
                turn.round = at % self._block_size
            turn.num_decodes = num_decodes
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
        is_plan, has_stages = ahead.is_plan, device.has_stages
        ends_s, num_slots = ahead.ends_s, ahead.num_slots
        num_calls, num_free, back_s = ahead.num_calls, ahead.num_left, ahead.back_s
        lag, num_before = ahead.lag, ahead.num_before
        turn = self.turns[self.rotation.place(ahead.first_call + num_calls)]
        may_admit = windows is not None or num_free >= num_blocks_to_admit
        while num_calls < most and now_s < until_s and back_s < told_s:
            slept_s = duration_s = 0.0
            if turn.num_decodes:
                num_taken = turn.boundaries[turn.round]
                if num_taken or may_admit:
                    num_taken *= self._num_groups
                    num_passed = windows.num_blocks(ahead.first_call + num_calls, 1) if windows is not None else 0
                    if num_taken > num_free or num_free - num_taken + num_passed >= num_blocks_to_admit:
                        break
                    num_taken -= num_passed
                    num_free -= num_taken
                    ahead.taken.append(num_calls * PLACES + num_taken)
                slot = turn.slot
                sampled_s = slot.sampled_s
                start_s = max(now_s, first_stage.free_s)
                start_s = max(start_s, sampled_s)
                duration_s = turn.decodes.run(turn.context_tokens, start_s)
                turn.context_tokens += turn.num_decodes
                turn.round = turn.round + 1 if turn.round + 1 < self._block_size else 0
                end_s = slot.sampled_s = last_stage.free_s
                if num_calls < num_slots:  # what the slot's last batch was is known in the calls behind
                    sampled_s = ends_s[num_calls - lag] if num_calls >= lag else -inf
                if start_s != sampled_s:
                    ahead.others.append(num_calls)
                    ahead.others_s.append(start_s)
            else:
                end_s = max(now_s, last_stage.free_s)
                slept_s = self._idle_sleep_s
            ends_s[num_before + num_calls] = end_s
            if not has_stages:
                ahead.durations_s.append(duration_s)
            if is_plan:
                ahead.called_s.append(now_s)
            back_s = max(now_s, ends_s[num_calls])
            now_s = back_s + slept_s
            num_calls += 1
            turn = turn.following
        ahead.num_calls, ahead.num_left = num_calls, num_free
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
        context_tokens, turn.boundaries = decodes.context_sum(at), decodes.block_boundaries.copy()
        for request in ended:
            context_tokens -= at - request.epoch
            turn.boundaries[(request.epoch + 1) % size] -= 1
        if turn.num_decodes:
            turn.context_tokens, turn.decodes = float(context_tokens), self._device.decodes(turn.num_decodes)
        ahead.lessened, ahead.num_others, ahead.others_tokens = number, turn.num_decodes, context_tokens
        return True
