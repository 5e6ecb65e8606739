"""When requests decoded, from which records tell the times between tokens and the steps in which blocks were taken.

Tokens of a decode are one step apart, so that only exceptions are noted: the token after a pass in which the decode
starved, the first token after a preemption, and tokens that were dropped because the request was aborted.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from sim.engine.decode_stretches import STRETCH
from sim.engine.narrow import NarrowRows, RowLog
from sim.engine.request import Request, RequestStatus
from sim.engine.unlimited import UNLIMITED

pack_stretch: Final = Struct("qii").pack


class LateToken(NamedTuple):
    """A token that did not come one step after the one before it: the pass that sampled each, and the request's row."""

    step: int
    step_before: int
    row: int


class Taken(NamedTuple):
    """Stretches that have ended, tokens that came late because the decode had starved, first tokens after a preemption, and the
    passes of those that were dropped.
    """

    stretches: NarrowRows
    late: list[LateToken]
    resumed: list[LateToken]
    lost: list[int]


class DecodeHistory:
    """Unbroken stretches of passes in which a request decoded, and the tokens that did not come a step after the last.

    `stretches` are those of DecodeStretches.
    `lost_decode_steps` has an entry for each sampled token of a decode that was dropped because of an abort: its pass.
    """

    def __init__(self) -> None:
        self.stretches = RowLog(STRETCH)
        self.lost_decode_steps: list[int] = []
        self._resumed: list[LateToken] = []
        self._late: list[LateToken] = []
        self._late_if_next: dict[Request, LateToken] = {}
        self._lost_from: dict[int, int] = {}

    def ends(self, request: Request, last_pass: int) -> None:
        """The request decodes without a break up to pass `last_pass`, and no further."""
        first = request.stretch_pass
        self.stretches.add(pack_stretch(first, last_pass - first, first - request.epoch))

    def resumes(self, request: Request, step: int) -> None:
        """A preempted request samples its first token since, in pass `step`."""
        self._resumed.append(LateToken(step, request.sampled_pass, request.index))

    def starves(self, request: Request, step: int) -> None:
        """A decode gets no token in pass `step`, so that the one of the next pass is late."""
        if request.starved_pass != step - 1:
            request.sampled_pass = step - 1
            if request in self._late_if_next:
                self._late.append(self._late_if_next.pop(request))
        self._late_if_next[request] = LateToken(step + 1, request.sampled_pass, request.index)
        self.ends(request, step - 1)
        request.stretch_pass = step + 1

    def is_preempted(self, request: Request, step: int) -> None:
        """A decode is preempted in pass `step`. If it starved in the pass before, its late token is not sampled."""
        self.ends(request, step - 1)
        if request.starved_pass == step - 1:
            del self._late_if_next[request]
        else:
            request.sampled_pass = step - 1

    def is_aborted(self, request: Request, last_pass: int, first_lost: int) -> None:
        """A request leaves after pass `last_pass`; its tokens sampled in pass `first_lost` and later are dropped."""
        is_decoding = request.status is RequestStatus.DECODING
        if is_decoding:
            self.ends(request, last_pass)
        end = last_pass if is_decoding else request.sampled_pass
        starved, sampled = request.starved_pass, request.sampled_pass
        for step in range(max(first_lost, request.first_decode_pass), end + 1):
            if step > starved or (step < starved and step <= sampled):
                self.lost_decode_steps.append(step)
        self._lost_from[request.index] = first_lost

    def cut(self, requests: Iterable[Request], last_pass: int) -> None:
        """End the stretches of those that decode with pass `last_pass`; they go on with others."""
        for request in requests:
            if request.status is RequestStatus.DECODING and request.stretch_pass <= last_pass:
                self.ends(request, last_pass)
                request.stretch_pass = last_pass + 1

    def take(self, num_passes: int) -> Taken:
        """What is known after so many passes, and forgotten here. A late token that is due in a later one may yet come."""
        late = [*self._late, *(token for token in self._late_if_next.values() if token.step < num_passes)]
        taken = Taken(
            self.stretches.rows(), self._that_came(late), self._that_came(self._resumed), self.lost_decode_steps
        )
        self._late_if_next = {who: token for who, token in self._late_if_next.items() if token.step >= num_passes}
        self.stretches, self.lost_decode_steps, self._late, self._resumed = RowLog(STRETCH), [], [], []
        return taken

    @property
    def asked_for_again(self) -> list[int]:
        """The passes before tokens that are late, if they come in the next one."""
        return [token.step_before for token in self._late_if_next.values()]

    def _that_came(self, tokens: list[LateToken]) -> list[LateToken]:
        lost_from = self._lost_from
        if not lost_from:
            return tokens
        return [token for token in tokens if token.step < lost_from.get(token.row, UNLIMITED)]
