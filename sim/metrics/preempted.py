"""When requests were preempted, told from the stretches of passes in which they decoded: these have no names, but their contexts
and times follow on each other.
"""

from typing import NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.decode_stretches import DecodeStretches
from sim.engine.leap_records import LeapRecords
from sim.engine.records import Ints
from sim.metrics.grid import ROUNDING_S

Span = tuple[float, float]
MOST_AT_ONCE = 1 << 20


class Stretches(NamedTuple):
    """Of a replica: first and last pass of each, and the tokens of context after these."""

    leaps: LeapRecords
    first: Ints
    last: Ints
    first_context: Ints
    last_context: Ints

    @classmethod
    def of(cls, leaps: LeapRecords) -> "Stretches | None":
        """None where a replica keeps none, or where it was not alone in these records."""
        found = leaps.decode_stretches
        if not isinstance(found, DecodeStretches) or not len(found.rows):
            return None
        rows = np.concatenate(list(found.rows.parts(MOST_AT_ONCE)))
        rows = rows[rows["num_further"] >= 0]  # those that starved and were then preempted have none of a pass
        first, further, context = (rows[name].astype(np.int64) for name in ("first", "num_further", "context_tokens"))
        return cls(leaps, first, first + further, context, context + further)

    def ends_s(self, passes: Ints) -> list[float]:
        return [float(end_s) for end_s in self.leaps.ends_of(np.asarray(passes))]

    def _before(self, stretch: int) -> list[int]:
        """Those that it may go on from: after a preemption a token more was sampled; after a pass without a token none was."""
        ended = self.last < self.first[stretch] - 1
        missing = self.first_context[stretch] - self.last_context
        return np.flatnonzero(
            ended & (missing == 2) | (self.last == self.first[stretch] - 2) & (missing == 1)
        ).tolist()[::-1]

    def chain(self, stretch: int, prompt_tokens: int, first_token_s: float) -> list[int] | None:
        """The stretches of a request up to this one, from its first token on; None if this is not one of its."""
        decoded = int(self.first_context[stretch]) - prompt_tokens
        begin_s = self.ends_s(self.first[[stretch]] - 1)[0]
        if decoded < 1 or begin_s < first_token_s - ROUNDING_S:
            return None
        if decoded == 1:
            return [stretch] if begin_s <= first_token_s + ROUNDING_S else None
        if decoded == 2:  # preempted before it decoded
            return [stretch]
        for before in self._before(stretch):
            if (found := self.chain(before, prompt_tokens, first_token_s)) is not None:
                return [*found, stretch]
        return None


def preempted_spans(stretches: Stretches, run: ClusterRecords, row: int) -> list[Span] | None:
    """From the last token before each preemption to the first since, of a completed request; None where that is not known."""
    requests = run.merged.requests
    prompt, finish_s = int(requests.prompt_tokens[row]), float(requests.finish_s[row])
    first_s = float(requests.first_token_s[row])
    last_context = prompt + int(requests.generated_tokens[row]) - 1
    ended = np.flatnonzero(stretches.last_context == last_context)
    ends_s = np.asarray(stretches.ends_s(stretches.last[ended]))
    for stretch in ended[np.abs(ends_s - finish_s) <= ROUNDING_S].tolist():
        chain = stretches.chain(stretch, prompt, first_s)
        if chain is not None:
            return _gaps(stretches, chain, prompt, first_s)
    return None


def _gaps(stretches: Stretches, chain: list[int], prompt_tokens: int, first_token_s: float) -> list[Span]:
    resumed_s = stretches.ends_s(stretches.first[chain] - 1)
    stopped_s = [first_token_s, *stretches.ends_s(stretches.last[chain[:-1]])]
    context = [prompt_tokens, *stretches.last_context[chain[:-1]].tolist()]
    missing = stretches.first_context[chain] - np.array(context)
    return [
        span
        for span, tokens in zip(zip(stopped_s, resumed_s, strict=True), missing.tolist(), strict=True)
        if tokens == 2
    ]
