"""When requests decoded: what the records need to tell token gaps and the steps in which blocks were taken.

A decode's tokens are one step apart, so only exceptions are noted: tokens after a pass in which a decode had starved, and
first tokens after a preemption.
"""

from struct import Struct

import numpy as np

from sim.engine.request import Request

STRETCH = np.dtype([("first", "i8"), ("num_further", "i4"), ("context_tokens", "i4")])
pack_stretch = Struct("qii").pack


class DecodeHistory:
    """Unbroken stretches of passes in which a request decoded, and the tokens that did not come a step after the last.

    `stretches` has rows of the first pass, how many follow it, and the context after it; `resumed` has pairs of the pass of a token and of the one before.
    """

    def __init__(self) -> None:
        self.stretches = bytearray()
        self.resumed: list[tuple[int, int]] = []
        self._late: list[tuple[int, int]] = []
        self._late_if_next: dict[Request, tuple[int, int]] = {}

    def ends(self, request: Request, last_pass: int) -> None:
        """The stretch that the request is in ends with this pass."""
        first = request.stretch_pass
        self.stretches += pack_stretch(first, last_pass - first, first - request.epoch)

    def resumes(self, request: Request, step: int) -> None:
        """A preempted request samples again."""
        self.resumed.append((step, request.sampled_pass))

    def starves(self, request: Request, step: int) -> None:
        """A decode gets nothing in this pass: its next token, due in the next, is late."""
        if request.starved_pass != step - 1:
            request.sampled_pass = step - 1
            if request in self._late_if_next:
                self._late.append(self._late_if_next.pop(request))
        self._late_if_next[request] = (step + 1, request.sampled_pass)
        self.ends(request, step - 1)
        request.stretch_pass = step + 1

    def is_preempted(self, request: Request, step: int) -> None:
        """A decode leaves before this pass; if it starved in the last, the late token does not come."""
        self.ends(request, step - 1)
        if request.starved_pass == step - 1:
            del self._late_if_next[request]
        else:
            request.sampled_pass = step - 1

    @property
    def late(self) -> list[tuple[int, int]]:
        """`(pass, pass of the token before)` of tokens that came of a decode that had starved."""
        return [*self._late, *self._late_if_next.values()]
