"""Which of the free blocks that attention windows have given back belonged to which request.

In the free list such blocks are only numbered: each has a *place* among all that windows have ever passed. Those of counted
decodes come pass by pass, in each in order of admission, so that nothing is kept of any: what is noted is who begins and who
ends to be counted, and what comes in between. When a request is preempted, it may later ask for blocks that its windows
have passed; only then the notes are read, the last first, to find its own among the blocks that are still free.
"""

from bisect import bisect_left, insort
from typing import NamedTuple

LEAST_NOTES = 256
"""So many are kept before one looks for those that are of no more use."""


class PassedBlock(NamedTuple):
    """A block: its place among those passed, its KV group, and its number within the request."""

    place: int
    group: int
    number: int


class Note:
    """What has been done when `end` blocks were passed; this kind skips a block of a counted decode that has a name, and no place."""

    __slots__ = ("end",)

    def __init__(self, end: int) -> None:
        self.end = end

    def undo(self, past: "Past") -> None:
        """Go back to before it."""
        past.step_back()


class Counting(Note):
    """A window is counted from pass `step` on, or no more: it passes a block every so many passes after pass `begin`."""

    __slots__ = ("begin", "begins", "step", "window")

    def __init__(self, end: int, window: int, begin: int, step: int, *, begins: bool) -> None:
        self.end = end
        self.window = window
        self.begin = begin
        self.step = step
        self.begins = begins

    def undo(self, past: "Past") -> None:
        past.count(self.window, self.begin, self.step, is_counted=not self.begins)


class Passed(Note):
    """`count` blocks that a window has passed at once, from number `first` of its request on, the last one first."""

    __slots__ = ("count", "first", "window")

    def __init__(self, end: int, window: int, first: int, count: int) -> None:
        self.end = end
        self.window = window
        self.first = first
        self.count = count

    def undo(self, past: "Past") -> None:
        past.pass_together(self.window, self.first, self.count)


class PassedBlocks:
    """The windows that are counted, and what they and others have passed.

    A window has a number: its request's number of admission and its KV group in one. `by_residue[r]` are those, in order,
    that pass a block in passes whose number is `r` modulo the block size. `num_passed` blocks have been by now, by the
    counted ones all those of the passes before `next_step`.
    """

    def __init__(self, block_size: int, num_groups: int = 1) -> None:
        self.by_residue: list[list[int]] = [[] for _ in range(block_size)]
        self.num_groups = num_groups
        self.next_step = 0
        self.num_passed = 0
        self._notes: list[Note] = []
        self._most_notes = LEAST_NOTES

    def window(self, serial: int, group: int) -> int:
        """The number of a request's window."""
        return serial * self.num_groups + group

    def begin(self, window: int, begin: int, step: int) -> None:
        """Count a window from pass `step` on."""
        insort(self.by_residue[begin % len(self.by_residue)], window)
        self._notes.append(Counting(self.num_passed, window, begin, step, begins=True))

    def end(self, window: int, begin: int, step: int) -> None:
        """Count it no more."""
        windows = self.by_residue[begin % len(self.by_residue)]
        del windows[bisect_left(windows, window)]
        self._notes.append(Counting(self.num_passed, window, begin, step, begins=False))

    def pass_together(self, window: int, first: int, count: int) -> None:
        """The next `count` blocks are of one that is not counted."""
        self._notes.append(Passed(self.num_passed + count, window, first, count))

    def pass_by_name(self) -> None:
        """The next of a counted one has a name, and so no place."""
        self._notes.append(Note(self.num_passed))

    def give_places(self, count: int) -> int:
        """So many come free together; the first place."""
        self.num_passed += count
        return self.num_passed - count

    @property
    def has_many_notes(self) -> bool:
        """Whether to look for the first place that is still free, and forget what was before."""
        return len(self._notes) > self._most_notes

    def forget_before(self, place: int) -> None:
        """Nobody will ask for blocks before that place."""
        self._notes = [note for note in self._notes if note.end > place]
        self._most_notes = max(LEAST_NOTES, 2 * len(self._notes))

    def of(self, serial: int, first: int) -> list[PassedBlock]:
        """The blocks of the request with that number of admission, which is not counted, from place `first` on, in order."""
        past = Past(self, serial)
        for note in reversed(self._notes):
            if note.end <= first:
                break
            past.go_back(note.end)
            note.undo(past)
        past.go_back(first)
        return [block for block in reversed(past.found) if block.place >= first]


class Past:
    """How things were when blocks from `place` on were yet to be passed, those of pass `step` from its `number`-th one on."""

    def __init__(self, passed: PassedBlocks, serial: int) -> None:
        self._by_residue = [windows.copy() for windows in passed.by_residue]
        self._num_groups = passed.num_groups
        self._serial = serial
        self._begins: dict[int, int] = {}
        self._place = passed.num_passed
        self._step = passed.next_step
        self._number = 0
        self.found: list[PassedBlock] = []

    def go_back(self, place: int) -> None:
        """Of blocks from that place on, all that are not undone yet are those of counted decodes."""
        while self._place > place:
            window = self.step_back()
            self._place -= 1
            if window // self._num_groups == self._serial:
                number = (self._step - self._begins[window]) // len(self._by_residue) - 1
                self.found.append(PassedBlock(self._place, window % self._num_groups, number))

    def step_back(self) -> int:
        """By one block of a counted decode; whose it is."""
        while self._number == 0:
            self._step -= 1
            self._number = len(self._by_residue[self._step % len(self._by_residue)])
        self._number -= 1
        return self._by_residue[self._step % len(self._by_residue)][self._number]

    def count(self, window: int, begin: int, step: int, *, is_counted: bool) -> None:
        """Before pass `step` a window was counted, or not yet."""
        if self._step >= step:
            self._step, self._number = step, 0
        windows = self._by_residue[begin % len(self._by_residue)]
        if is_counted:
            insort(windows, window)
            self._begins[window] = begin
        else:
            windows.remove(window)

    def pass_together(self, window: int, first: int, count: int) -> None:
        """One that is not counted passed so many."""
        self._place -= count
        if window // self._num_groups == self._serial:
            group = window % self._num_groups
            self.found += [
                PassedBlock(self._place + number, group, first + count - 1 - number)
                for number in reversed(range(count))
            ]
