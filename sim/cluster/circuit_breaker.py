"""A circuit breaker: a replica that keeps failing is left out for a while, then tried again.

The machine of SGLang's gateway (sgl-project/sglang, sgl-model-gateway/src/main.rs @01f6c92a has its defaults): it opens after
so many failures in a window, is tried again after some time, and closes after so many successes, or opens at a failure.
"""

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from sim.cluster.options import option


@dataclass(frozen=True)
class CircuitBreakerOptions:
    failures: int = option(10, at_least=1)
    window_s: float = option(120.0, at_least=1e-3)
    open_s: float = option(60.0, at_least=0)
    successes: int = option(3, at_least=1)


class Circuit(Enum):
    """CLOSED lets requests through, OPEN none; HALF_OPEN tries some."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """`_failures_s` are the times of failures that count while closed, `_num_successes` those since it is half open."""

    def __init__(self, options: CircuitBreakerOptions) -> None:
        self._options = options
        self._state = Circuit.CLOSED
        self._opened_s = -math.inf
        self._failures_s: deque[float] = deque()
        self._num_successes = 0

    def state(self, now_s: float) -> Circuit:
        """An open circuit is half open when its time has passed."""
        if self._state is Circuit.OPEN and now_s >= self._opened_s + self._options.open_s:
            self._state, self._num_successes = Circuit.HALF_OPEN, 0
        return self._state

    def failed(self, now_s: float) -> None:
        """A request that was let through has failed."""
        state = self.state(now_s)
        if state is Circuit.CLOSED:
            self._failures_s.append(now_s)
            while self._failures_s[0] <= now_s - self._options.window_s:
                self._failures_s.popleft()
            if len(self._failures_s) < self._options.failures:
                return
        if state is not Circuit.OPEN:
            self._state, self._opened_s = Circuit.OPEN, now_s
            self._failures_s.clear()

    def succeeded(self, now_s: float) -> None:
        """A request that was let through has been answered."""
        if self.state(now_s) is Circuit.HALF_OPEN:
            self._num_successes += 1
            if self._num_successes >= self._options.successes:
                self._state = Circuit.CLOSED
