"""A request on its way through a fleet that changes: the attempt under way, and what came of those before."""

from math import isnan, nan

from sim.cluster.clock import Answer
from sim.cluster.places import Place
from sim.engine.request import Request
from sim.engine.request_table import NO_REPLICA, Earlier


class Errand:
    """From a request's arrival to its end; `place` is where the attempt is, None at the gateway or between two attempts.

    `replica` is the number of the last replica that had it.
    """

    def __init__(self, request: Request, came_s: float, answer: Answer | None) -> None:
        self.attempt = request
        self.came_s = came_s
        self.answer = answer
        self.place: Place | None = None
        self.replica = NO_REPLICA
        self.num_lost = 0
        self.is_over = False
        self._earlier = Earlier(came_s, nan, nan, 0)

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
        """When its first token came or will come; NaN if that is not known."""
        earlier_s = self._earlier.first_token_s
        return self.attempt.first_token_s if isnan(earlier_s) else earlier_s

    @property
    def num_output_tokens(self) -> int:
        """Those that were asked for."""
        return self._earlier.num_tokens + self.attempt.max_tokens

    def keep(self, num_returned: int) -> None:
        """The attempt is over, and the next goes on from the tokens that it has returned."""
        _, scheduled_s, first_token_s, num_tokens = self._earlier
        if num_returned and not num_tokens:
            scheduled_s, first_token_s = self.attempt.first_scheduled_s, self.attempt.first_token_s
        self._earlier = Earlier(self.came_s, scheduled_s, first_token_s, num_tokens + num_returned)
