"""What happens to many requests in which pass: once, or over and over."""

import sys
from heapq import heappop, heappush

from sim.engine.request import Request


class StepCalendar:
    """Requests by the pass in which something happens to them; `next_pass` is the first such, maxsize where there is none."""

    __slots__ = ("_by_pass", "_order", "next_pass")

    def __init__(self) -> None:
        self._by_pass: dict[int, list[Request]] = {}
        self._order: list[int] = []
        self.next_pass = sys.maxsize

    def __contains__(self, step: int) -> bool:
        return step in self._by_pass

    def add(self, request: Request, step: int) -> None:
        """Something will happen to the request in that pass."""
        if step in self._by_pass:
            self._by_pass[step].append(request)
        else:
            self._by_pass[step] = [request]
            heappush(self._order, step)
            self.next_pass = self._order[0]

    def remove(self, request: Request, step: int) -> None:
        """It will not; the pass stays, if with nobody."""
        self._by_pass[step].remove(request)

    def pop_next(self) -> list[Request]:
        """Those of `next_pass`, none where all have been removed."""
        requests = self._by_pass.pop(heappop(self._order))
        self.next_pass = self._order[0] if self._order else sys.maxsize
        return requests


def occurrences(by_residue: list[int], first: int, num_passes: int) -> int:
    """How often it happens in consecutive passes what happens `by_residue[s % len(by_residue)]` times in each pass `s`."""
    size, count = len(by_residue), 0
    if num_passes >= size:
        count = num_passes // size * sum(by_residue)
        num_passes %= size
    for step in range(first, first + num_passes):
        count += by_residue[step % size]
    return count
