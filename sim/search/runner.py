"""Runs tasks through an executor, none twice, and says how far it is."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sim.search.evaluate import Outcome, Task
from sim.search.executors import Executor
from sim.search.objectives import Target
from sim.search.store import Memory


class Progress(NamedTuple):
    """`best` is the leading goal's figure among what this phase has found so far, None before anything fits."""

    phase: str
    done: int
    total: int
    best: float | None
    num_infeasible: int


OnProgress = Callable[[Progress], None]


class Runner:
    """Remembers every outcome; tasks that are remembered are not run."""

    def __init__(self, target: Target, executor: Executor, memory: Memory, on_progress: OnProgress | None) -> None:
        self._target = target
        self._executor = executor
        self._memory = memory
        self._on_progress = on_progress
        self.num_replays = 0

    def run(self, tasks: Sequence[Task], phase: str, *, before: int = 0, total: int | None = None) -> list[Outcome]:
        """Outcomes in the order of the tasks; `before` and `total` place them within a longer phase."""
        keys = [task.key for task in tasks]
        found = {key: outcome for key in keys if (outcome := self._memory.get(key))}
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if key not in found}
        tally = _Tally(self._target, found.values())
        missing_keys = list(missing)
        for place, outcome in self._executor.run(list(missing.values())):
            key = missing_keys[place]
            found[key] = outcome
            self._memory.put(key, outcome)
            self.num_replays += outcome.is_feasible
            tally.add(outcome)
            self._report(phase, tally, before, total or len(tasks))
        return [found[key] for key in keys]

    def _report(self, phase: str, tally: "_Tally", before: int, total: int) -> None:
        if self._on_progress:
            self._on_progress(Progress(phase, before + tally.done, total, tally.best, tally.num_infeasible))


class _Tally:
    """What has come in so far."""

    def __init__(self, target: Target, known: Iterable[Outcome]) -> None:
        self._target = target
        self._best: Outcome | None = None
        self.done = 0
        self.num_infeasible = 0
        for outcome in known:
            self.add(outcome)

    @property
    def best(self) -> float | None:
        return None if self._best is None else self._best.metrics.get(self._target.goals[0].key)

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        if not outcome.is_feasible:
            self.num_infeasible += 1
        elif self._best is None or self._target.rank(outcome.metrics) < self._target.rank(self._best.metrics):
            self._best = outcome
