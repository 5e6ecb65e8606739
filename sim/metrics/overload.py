"""Whether a deployment cannot keep up with the requests that come: their queue still grows when the last one arrives."""

from typing import NamedTuple

import numpy as np

from sim.engine.records import RequestRecords

FEW, BACKLOG = 10, 0.05  # requests not begun when the last one arrives, and their share of all: more is overload
GROWTH = 1.5  # of that queue since half of the time: twice as long where the rates do not change


class Overload(NamedTuple):
    """Requests/s that came and that were answered while they came, and how many had not begun when the last one arrived."""

    offered_rate: float
    served_rate: float
    num_not_begun: int
    num_requests: int

    @property
    def text(self) -> str:
        return (
            f"The deployment cannot keep up: {self.offered_rate:,.3g} requests/s came and {self.served_rate:,.3g} were served, and"
            f" {self.num_not_begun:,} of {self.num_requests:,} had not begun when the last one arrived; in a longer trace waits are longer."
        )


def num_not_begun(requests: RequestRecords, at_s: float) -> int:
    """Requests that had come by then, and begin later."""
    begins_later = np.isfinite(requests.first_scheduled_s) & (requests.first_scheduled_s > at_s)
    return int(np.count_nonzero(begins_later & (requests.arrival_s <= at_s)))


def is_backlog(num_waiting: int, num_requests: int) -> bool:
    return num_waiting > max(FEW, BACKLOG * num_requests)


def overload(requests: RequestRecords) -> Overload | None:
    """None where the queue is short or grows no more, and where all requests come at once."""
    if not len(requests):
        return None
    first_s, last_s = float(requests.arrival_s.min()), float(requests.arrival_s.max())
    return judged(
        len(requests),
        last_s - first_s,
        num_waiting=num_not_begun(requests, last_s),
        half_way=num_not_begun(requests, (first_s + last_s) / 2),
        num_served=int(np.count_nonzero(requests.finish_s <= last_s)),
    )


def judged(num_requests: int, span_s: float, *, num_waiting: int, half_way: int, num_served: int) -> Overload | None:
    """The same of requests that come within `span_s`: `num_waiting` had not begun at its end, nor so many `half_way`."""
    if span_s == 0 or not is_backlog(num_waiting, num_requests) or num_waiting < GROWTH * half_way:
        return None
    return Overload((num_requests - 1) / span_s, num_served / span_s, num_waiting, num_requests)
