"""A what-if: the client who has been served least comes first, by virtual token counters (VTC, Sheng et al., OSDI 2024, algorithm 2).

vLLM has no such policy. A request costs its client a token for each of its prompt, as it is first admitted, and two for each of its
answer, as the paper weighs them.
"""

import bisect
from collections.abc import Collection, Iterator, Sequence

from sim.engine.request import Request

PROMPT_TOKEN = 1
ANSWER_TOKEN = 2


class FairShareQueue:
    """A line for each client, first come, first served; the head is that of the client whose counter is the lowest.

    A client with nobody in line begins no lower than those who wait, or, where nobody does, than who was last admitted: what was
    not asked for cannot be saved up.
    """

    def __init__(self) -> None:
        self._lines: dict[int, list[Request]] = {}
        self._counters: dict[int, int] = {}
        self._last = 0
        self._due: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted((request for line in self._lines.values() for request in line), key=self._rank))

    def __contains__(self, request: object) -> bool:
        return any(request in line for line in self._lines.values())

    def __getitem__(self, place: int) -> Request:
        assert place == 0, "the head alone is looked at"
        return min((line[0] for line in self._lines.values()), key=self._rank)

    def _rank(self, request: Request) -> tuple[int, float, int]:
        return (self._counters[request.client], *_arrival(request))

    def add(self, request: Request) -> None:
        client = request.client
        if client not in self._lines:
            waiting = [self._counters[other] for other in self._lines] or [self._counters.get(self._last, 0)]
            self._counters[client] = max(self._counters.get(client, 0), min(waiting))
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        bisect.insort(self._lines.setdefault(request.client, []), request, key=_arrival)

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.put_back(request)

    def pop_first(self) -> Request:
        first = self[0]
        self.remove_all([first])
        if self._due is not None:
            self._last = first.client
            self.charge(first.client, self._due)
            self._due = None
        return first

    def remove_all(self, requests: Collection[Request]) -> None:
        for request in requests:
            line = self._lines[request.client]
            line.remove(request)
            if not line:
                del self._lines[request.client]

    def admit_first(self, num_tokens: int) -> None:
        """The head is about to leave for good, which costs its client so many tokens then."""
        self._due = num_tokens

    def charge(self, client: int, num_tokens: int) -> None:
        self._counters[client] += num_tokens


def _arrival(request: Request) -> tuple[float, int]:
    return (request.arrival_s, request.index)
