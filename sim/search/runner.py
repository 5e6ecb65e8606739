"""Runs tasks in this process, in a pool of processes or on a Ray cluster, none of them twice, and reports progress."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import process_time
from typing import Any, Literal, NamedTuple, Protocol, get_args

from sim.errors import ConfigError, nearest
from sim.processes import process_pool
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.objectives import Target
from sim.search.store import Memory

MAX_WORKERS = 1_000  # processes of some 100 MB each
PATIENCE_S = 1.0  # of computing in this process before workers are started, each of which costs about as much
ExecutorName = Literal["serial", "process", "ray"]


class Executor(Protocol):
    """Runs tasks; the order in which outcomes come is all that differs between executors."""

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        """Yields the place and outcome of each task as it finishes."""
        ...


def executor(name: str, scenario: Scenario, workers: int) -> AbstractContextManager[Executor]:
    """The executor of that name; one worker needs no pool. Raises ConfigError for an unknown name or number of workers."""
    if name not in get_args(ExecutorName):
        names = get_args(ExecutorName)
        raise ConfigError(f"--executor must be one of {', '.join(names)}, got {name!r}.{nearest(name, names)}")
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}.")
    if workers > MAX_WORKERS:
        raise ConfigError(f"--workers must be at most {MAX_WORKERS:,}, got {workers:,}.")
    if name == "ray":
        return ray_cluster(scenario)
    return nullcontext(Serial(scenario)) if name == "serial" or workers == 1 else processes(scenario, workers)


class Serial:
    """Runs tasks one after the other in this process."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        for place, task in enumerate(tasks):
            yield place, self._scenario.try_out(task)


class Patient:
    """Runs tasks in this process, and on workers as soon as that has taken PATIENCE_S: short searches start none."""

    def __init__(self, scenario: Scenario, start: Callable[[], Executor]) -> None:
        self._scenario = scenario
        self._start = start
        self._pool: Executor | None = None
        self._began_s = process_time()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        done = 0
        while done < len(tasks) and not self._pool:
            if process_time() - self._began_s < PATIENCE_S:
                yield done, self._scenario.try_out(tasks[done])
                done += 1
            else:
                self._pool = self._start()
        if self._pool:
            for place, outcome in self._pool.run(tasks[done:]):
                yield done + place, outcome


@contextmanager
def processes(scenario: Scenario, workers: int) -> Iterator[Executor]:
    """Worker processes, once they are worth their start."""
    with ExitStack() as started:
        yield Patient(scenario, lambda: started.enter_context(process_pool(scenario, workers)))


class RayCluster:
    """Runs tasks on a Ray cluster; the scenario lies in its object store."""

    def __init__(self, ray: Any, scenario: Scenario) -> None:
        self._ray = ray
        self._scenario = ray.put(scenario)
        self._remote = ray.remote(_try_out_shared)

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        places = {self._remote.remote(self._scenario, task): place for place, task in enumerate(tasks)}
        while places:
            done, _ = self._ray.wait(list(places))
            for reference in done:
                yield places.pop(reference), self._ray.get(reference)


def _try_out_shared(scenario: Scenario, task: Task) -> Outcome:
    return scenario.try_out(task)


@contextmanager
def ray_cluster(scenario: Scenario) -> Iterator[Executor]:
    """The Ray cluster that this process is connected to or RAY_ADDRESS names; otherwise a local one, shut down at the end."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--executor ray needs Ray; install servecast[ray].") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield RayCluster(ray, scenario)
    finally:
        if is_ours:
            ray.shutdown()


class Progress(NamedTuple):
    """Tasks done of `total` in a phase. `best` is the best figure of the first goal so far, None before any candidate fits."""

    phase: str
    done: int
    total: int
    best: float | None
    num_infeasible: int


OnProgress = Callable[[Progress], None]


class Runner:
    """Runs tasks through an executor and remembers their outcomes; a task that is remembered is not run again."""

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
    """Counts the outcomes of a phase, and keeps the best."""

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
