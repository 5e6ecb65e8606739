"""The passes of some requests of a run, taken from its step log as it is simulated again."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.api import Result, simulate
from sim.workload.trace import Trace


class Pass(NamedTuple):
    """A step that computed something of a request: on which replica, when it was scheduled, began and ended; the request's tokens in it and
    those computed before, all tokens of the batch and how many others it has. Of several answers the tokens are those of all, and computed before is
    what the one that is least far has.
    """

    replica: int
    scheduled_s: float
    start_s: float
    end_s: float
    num_tokens: int
    num_computed: int
    batch_tokens: int
    num_others: int


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
    """Simulate the run again, and keep what happened to these requests."""
    row_of = {name: row for row in rows for name in _names(result.trace, row)}
    passes: dict[int, list[Pass]] = {row: [] for row in row_of.values()}
    preempted_s: defaultdict[int, list[float]] = defaultdict(list)

    def take(step: Mapping[str, Any]) -> None:
        replica, batch = step.get("replica", step.get("rank", 0)), step.get("sched", ())
        parts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for name, num_tokens, num_computed, _ in batch:
            if name in row_of:
                parts[row_of[name]].append((num_tokens, num_computed))
        for row, answers in parts.items():
            num_tokens, num_computed = sum(tokens for tokens, _ in answers), min(before for _, before in answers)
            times_s, num_others = (step["t"], step["start"], step["end"]), len(batch) - len(answers)
            passes[row].append(Pass(replica, *times_s, num_tokens, num_computed, step["n"], num_others))
        for name in step.get("preempted", ()):
            if name in row_of:
                preempted_s[row_of[name]].append(step["t"])

    again = {"intervals": False, "jobs": 1, "step_log": take}
    simulate(**{**result.asked, **again})
    return {row: Watched(sorted(found, key=lambda one: one.start_s), preempted_s[row]) for row, found in passes.items()}


def _names(trace: Trace, row: int) -> list[str]:
    """What the engine calls a request, or each of its answers."""
    name, num_answers = trace.request_id[row], 1 if trace.n is None else int(trace.n[row])
    return [f"{number}_{name}" for number in range(num_answers)] if num_answers > 1 else [name]
