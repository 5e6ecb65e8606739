"""Events of requests by the pass in which they happen: once (StepCalendar), or every so many passes (`occurrences`)."""

from heapq import heappop, heappush

from sim.engine.request import Request
from sim.engine.unlimited import UNLIMITED


class StepCalendar:
    """Requests by the pass in which something happens to them; `next_pass` is the first such pass, UNLIMITED if none."""

    __slots__ = ("_by_pass", "_order", "next_pass")

    def __init__(self) -> None:
        self._by_pass: dict[int, list[Request]] = {}
        self._order: list[int] = []
        self.next_pass = UNLIMITED

    def __contains__(self, step: int) -> bool:
        return step in self._by_pass

    def add(self, request: Request, step: int) -> None:
        """Enter a request under a pass."""
        if step in self._by_pass:
            self._by_pass[step].append(request)
        else:
            self._by_pass[step] = [request]
            heappush(self._order, step)
            self.next_pass = self._order[0]

    def remove(self, request: Request, step: int) -> None:
        """Take a request out again. The pass stays in the calendar, even if no request is left under it."""
        self._by_pass[step].remove(request)

    def peek_next(self) -> list[Request]:
        """The requests of `next_pass`, which stay in."""
        return self._by_pass[self.next_pass]

    def pop_next(self) -> list[Request]:
        """Take out the requests of `next_pass`, none if all were removed, and go on to the pass after it."""
        requests = self._by_pass.pop(heappop(self._order))
        self.next_pass = self._order[0] if self._order else UNLIMITED
        return requests


def occurrences(by_residue: list[int], first: int, num_passes: int) -> int:
    """Number of events in `num_passes` passes from `first` on, if `by_residue[s % len(by_residue)]` happen in pass `s`."""
    size, count = len(by_residue), 0
    if num_passes >= size:
        for number in by_residue:  # which compiled code adds up in a sixth of the time of `sum`
            count += number
        count *= num_passes // size
        num_passes %= size
    residue = first % size
    end = residue + num_passes
    for place in range(residue, min(end, size)):
        count += by_residue[place]
    for place in range(end - size):
        count += by_residue[place]
    return count
