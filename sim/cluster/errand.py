"""A request on its way through a fleet that changes: the attempt under way, with all its answers, and what came of those before."""

from collections.abc import Sequence
from math import isnan, nan

from sim.cluster.clock import Answer
from sim.cluster.places import Address, Place
from sim.engine.request import Request
from sim.engine.request_table import NO_REPLICA, Earlier


class Errand:
    """From a request's arrival to its end; `place` is where the attempt is, None at the gateway or between two attempts.

    `address` is where it was sent last, and `replica` the number of the replica there that had it, known once it has left. `answers` are the attempt and those for its further answers, all of them at one
    replica; `open` are those that have not ended.
    """

    def __init__(self, request: Request, others: Sequence[Request], came_s: float, answer: Answer | None) -> None:
        self.begin(request, others)
        self.came_s = came_s
        self.answer = answer
        self.place: Place | None = None
        self.address: Address | None = None
        self.replica = NO_REPLICA
        self.num_lost = 0
        self.is_over = False
        self._earlier = Earlier(came_s, nan, nan, 0)

    def begin(self, attempt: Request, others: Sequence[Request]) -> None:
        """An attempt that has not been sent."""
        self.attempt = attempt
        self.answers = (attempt, *others)
        self.open = dict.fromkeys(self.answers)

    @property
    def row(self) -> int:
        """Of the trace."""
        return self.attempt.index

    @property
    def earlier(self) -> Earlier | None:
        """What the record of the last attempt does not say; None where that says all."""
        return self._earlier if self.num_lost or self.came_s != self.attempt.arrival_s else None

    @property
    def first_token_s(self) -> float:
        """When the first token of any answer came or will come; NaN if that is not known."""
        earlier_s = self._earlier.first_token_s
        if not isnan(earlier_s):
            return earlier_s
        known_s = [answer.first_token_s for answer in self.answers if not isnan(answer.first_token_s)]
        return min(known_s, default=nan)

    @property
    def num_answer_tokens(self) -> int:
        """Those that were asked for in each answer."""
        return self._earlier.num_tokens + self.attempt.max_tokens

    @property
    def num_output_tokens(self) -> int:
        """Those that were asked for in all answers."""
        return self.num_answer_tokens * len(self.answers)

    def keep(self, num_returned: int) -> None:
        """The attempt is over, and the next goes on from the tokens that it has returned."""
        _, scheduled_s, first_token_s, num_tokens = self._earlier
        if num_returned and not num_tokens:
            scheduled_s, first_token_s = self.attempt.first_scheduled_s, self.attempt.first_token_s
        self._earlier = Earlier(self.came_s, scheduled_s, first_token_s, num_tokens + num_returned)
