"""Where candidates are tried: in this process, in a pool of processes, or on a Ray cluster.

All give the same outcomes; what differs is the order in which they come.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, get_args

from sim.errors import ConfigError, nearest
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.processes import process_pool

MAX_WORKERS = 1_000  # processes of some 100 MB each
ExecutorName = Literal["serial", "process", "ray"]


class Executor(Protocol):
    """Tries tasks out."""

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        """Each task's place and outcome, as they finish."""
        ...


def executor(name: str, scenario: Scenario, workers: int) -> AbstractContextManager[Executor]:
    """The executor of that name, ready to run; one worker needs no pool. Raises ConfigError for an unknown name."""
    if name not in get_args(ExecutorName):
        names = get_args(ExecutorName)
        raise ConfigError(f"--executor must be one of {', '.join(names)}, got {name!r}.{nearest(name, names)}")
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}.")
    if workers > MAX_WORKERS:
        raise ConfigError(f"--workers must be at most {MAX_WORKERS:,}, got {workers:,}.")
    if name == "ray":
        return ray_cluster(scenario)
    return nullcontext(Serial(scenario)) if name == "serial" or workers == 1 else process_pool(scenario, workers)


class Serial:
    """One task after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        for place, task in enumerate(tasks):
            yield place, self._scenario.try_out(task)


class RayCluster:
    """Tasks on a Ray cluster, the scenario in its object store."""

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
    """The cluster this process is connected to or RAY_ADDRESS names, or else a local one for the time being."""
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
