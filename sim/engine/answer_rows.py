"""Rows for the answers of requests that ask for several: of the first ones those of the trace, of all others further ones behind these."""

import numpy as np

from sim.engine.columns import Ints


class AnswerRows:
    """Those of a trace whose requests have `n` answers each; `request` has the row of the request for each answer."""

    def __init__(self, n: Ints, more_answers: Ints) -> None:
        self._num_requests = len(n)
        self._ends = np.cumsum(n)
        self.request: Ints = np.concatenate((np.arange(len(n)), more_answers))

    def __len__(self) -> int:
        return len(self.request)

    def others(self, row: int) -> range:
        """The rows of a request's answers beyond the first."""
        return range(self._behind(row - 1), self._behind(row))

    def _behind(self, row: int) -> int:
        """The row behind those of the requests up to this one."""
        return self._num_requests + (int(self._ends[row]) - row - 1 if row >= 0 else 0)

    def place(self, answer: int) -> int:
        """Where an answer is among all, request by request; the first one, from which a session goes on, comes last of its request's."""
        row = int(self.request[answer])
        return int(self._ends[row]) - 1 if answer == row else answer - self._num_requests + row
