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
TimesS = tuple[list[float], list[float], list[float]]
"""Until when each stage is taken, how long it has run, and until when each slot samples."""
NO_TIMES: TimesS = ([], [], [])
NOT_TOLD: list[float] = []
NUM_FACTS: Final = 3
"""Of each slot that are told of some calls."""


class Turn:
    """A slot while its calls are worked out: its decodes, the sum of their contexts after the next call, and the blocks that they begin by round."""

    __slots__ = ("boundaries", "context_tokens", "decodes", "num_decodes", "round", "slot")
    decodes: DecodesAlone

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.num_decodes = 0
        self.context_tokens = 0.0
        self.boundaries: list[int] = []
        self.round = 0


class CallsAhead:
    """So many calls from `first_call` on; of the first of each slot, in order, the facts: its decodes, the sum of their contexts after it, and
    how many batches it comes after its slot's last one.

    Of `num_free` blocks `num_left` are left. For each call: how many its batch takes, less what windows give back, in a plan when it is made,
    and, of a device with a single stage, how long it runs. The batches in flight before, and then theirs, end at `ends_s`; each call waits for the
    next of these, the last one until `back_s`. The batch of a call begins as its slot's last one ends, `lag` places before the one that it waits
    for; that of one among `others` begins at the time in `others_s`. The call after them is made at `next_s`, and the device of a plan
    then stands at `times_s`.
    """

    __slots__ = (
        "back_s", "called_s", "durations_s", "ends_s", "facts", "first_call", "is_plan", "lag", "next_s", "num_calls", "num_free", "num_left", "num_slots",
        "num_taken", "others", "others_s", "times_s",
    )  # fmt: skip

    def __init__(self, first_call: int, num_slots: int, ends_s: list[float], num_free: int, *, is_plan: bool) -> None:
        self.first_call = first_call
        self.num_slots = num_slots
        self.lag = num_slots - len(ends_s)
        self.facts: list[int] = []
        self.is_plan = is_plan
        self.num_calls = 0
        self.num_free = self.num_left = num_free
        self.ends_s = ends_s
        self.others: list[int] = []
        self.others_s: list[float] = []
        self.durations_s = NOT_TOLD if num_slots > 1 else []
        self.called_s = [] if is_plan else NOT_TOLD
        self.num_taken: list[int] = []
        self.back_s = self.next_s = -inf
        self.times_s = NO_TIMES

    def num_begun(self, now_s: float) -> int:
        """How many of a plan are made before that time."""
        return bisect_left(self.called_s, now_s)

    def backs_s(self, number: int) -> float:
        """When the batch comes back that this one of a plan waits for."""
        return max(self.called_s[number], self.ends_s[number])

    def num_decodes(self, number: int) -> int:
        return self.facts[NUM_FACTS * (number % self.num_slots)]

    def start_s(self, number: int) -> float:
        """When its batch begins."""
        if self.num_decodes(number) == 0:
            return self.end_s(number)
        if number in self.others:
            return self.others_s[self.others.index(number)]
        return self.ends_s[number - self.lag]

    def end_s(self, number: int) -> float:
        """When its batch ends."""
        return self.ends_s[len(self.ends_s) - self.num_calls + number]


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

    def calls(self, first_call: int, ends_s: list[float], num_free: int, *, is_plan: bool) -> CallsAhead:
        """Those to be worked out next, none so far."""
        rotation, turns = self.rotation, self.turns
        ahead = CallsAhead(first_call, len(turns), ends_s, num_free, is_plan=is_plan)
        place, at, number, facts = (
            rotation.place(first_call),
            rotation.round(first_call),
            rotation.num_launched,
            ahead.facts,
        )
        for _ in turns:
            turn = turns[place]
            decodes = turn.slot.decodes
            num_decodes, context_tokens = decodes.count, decodes.context_sum(at)
            facts.append(num_decodes)
            facts.append(context_tokens)
            facts.append(number - turn.slot.last_number)
            turn.num_decodes = num_decodes
            if num_decodes:
                number += 1
                turn.context_tokens = float(context_tokens)
                turn.decodes = self._device.decodes(num_decodes)
                turn.boundaries = decodes.block_boundaries
                turn.round = at % self._block_size
            place += 1
            if place == ahead.num_slots:
                place, at = 0, at + 1
        return ahead

    def work_out(
        self, ahead: CallsAhead, most: int, until_s: float, told_s: float, now_s: float, num_blocks_to_admit: int
    ) -> None:
        """Add the calls made before `until_s`, `most` or fewer, as far as there are blocks; the device runs their batches.

        The last one is the first whose batch is back at `told_s` or later. None leaves so many blocks free that somebody may be admitted.
        """
        device, windows = self._device, self.rotation.windows
        num_groups, block_size = self._num_groups, self._block_size
        first_stage, last_stage = device.stages[0], device.stages[-1]
        is_plan, has_stages = ahead.is_plan, device.has_stages
        ends_s, nums_taken = ahead.ends_s, ahead.num_taken
        turns, num_slots = self.turns, ahead.num_slots
        place = self.rotation.place(ahead.first_call)
        num_calls, num_free, back_s, lag = 0, ahead.num_free, ahead.back_s, ahead.lag
        while num_calls < most and now_s < until_s and back_s < told_s:
            turn = turns[place]
            slept_s = 0.0
            num_taken = num_passed = 0
            if turn.num_decodes:
                num_taken = turn.boundaries[turn.round] * num_groups
                if windows is not None:
                    num_passed = windows.num_blocks(ahead.first_call + num_calls, 1)
                if num_taken > num_free or num_free - num_taken + num_passed >= num_blocks_to_admit:
                    break
                num_taken -= num_passed
                num_free -= num_taken
                slot = turn.slot
                start_s = max(now_s, first_stage.free_s)
                start_s = max(start_s, slot.sampled_s)
                duration_s = turn.decodes.run(turn.context_tokens, start_s)
                turn.context_tokens += turn.num_decodes
                turn.round = turn.round + 1 if turn.round + 1 < block_size else 0
                end_s = slot.sampled_s = last_stage.free_s
                if num_calls < lag or start_s != ends_s[num_calls - lag]:
                    ahead.others.append(num_calls)
                    ahead.others_s.append(start_s)
            else:
                end_s = max(now_s, last_stage.free_s)
                duration_s = 0.0
                slept_s = self._idle_sleep_s
            ends_s.append(end_s)
            waited_for_s = ends_s[num_calls]
            nums_taken.append(num_taken)
            if not has_stages:
                ahead.durations_s.append(duration_s)
            if is_plan:
                ahead.called_s.append(now_s)
            back_s = max(now_s, waited_for_s)
            now_s = back_s + slept_s
            num_calls += 1
            place = place + 1 if place + 1 < num_slots else 0
        ahead.num_calls, ahead.num_left = num_calls, num_free
        ahead.back_s, ahead.next_s = back_s, now_s
        if is_plan:
            ahead.times_s = self.times_s
