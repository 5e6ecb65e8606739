"""The passes of some requests of a run, taken from its step log as it is simulated again."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.api import Result, simulate
from sim.errors import ConfigError


class Pass(NamedTuple):
    """A step that computed something of a request: on which replica, when it was scheduled, began and ended; the request's tokens in it and
    those computed before, and all tokens and requests of the batch.
    """

    replica: int
    scheduled_s: float
    start_s: float
    end_s: float
    num_tokens: int
    num_computed: int
    batch_tokens: int
    batch_requests: int


class Told(NamedTuple):
    """A pass; whether the request was preempted before it, and whether it computes what was lost by that."""

    one: Pass
    was_preempted: bool
    is_again: bool


class Watched(NamedTuple):
    """What happened to a request: its passes in order of time, and when it was preempted."""

    passes: Sequence[Pass]
    preempted_s: Sequence[float]

    def told(self) -> Iterator[Told]:
        """Its passes, and what preemptions have to do with each."""
        left_s, num_known, num_lost = deque(self.preempted_s), 0, 0
        for one in self.passes:
            comes_after = bool(left_s) and left_s[0] <= one.scheduled_s
            while left_s and left_s[0] <= one.scheduled_s:
                left_s.popleft()
                num_lost = num_known
            yield Told(one, comes_after, one.num_computed < num_lost)
            num_known = max(num_known, one.num_computed + one.num_tokens)


def watch(result: Result, rows: Iterable[int]) -> dict[int, Watched]:
    """Simulate the run again, and keep what happened to these requests.

    Raises ConfigError where requests ask for several answers, which are requests of their own to the engine.
    """
    if len(result.trace.more_answers):
        raise ConfigError("requests with several answers (`n`) are not explained one by one; leave the column out.")
    row_of = {result.trace.request_id[row]: row for row in rows}
    passes: dict[int, list[Pass]] = {row: [] for row in row_of.values()}
    preempted_s: defaultdict[int, list[float]] = defaultdict(list)

    def take(step: Mapping[str, Any]) -> None:
        replica, batch = step.get("replica", step.get("rank", 0)), step.get("sched", ())
        for name, num_tokens, num_computed, _ in batch:
            if name in row_of:
                times_s = step["t"], step["start"], step["end"]
                shape = num_tokens, num_computed, step["n"], len(batch)
                passes[row_of[name]].append(Pass(replica, *times_s, *shape))
        for name in step.get("preempted", ()):
            if name in row_of:
                preempted_s[row_of[name]].append(step["t"])

    again = {"intervals": False, "jobs": 1, "step_log": take}
    simulate(**{**result.asked, **again})
    return {row: Watched(sorted(found, key=lambda one: one.start_s), preempted_s[row]) for row, found in passes.items()}
