"""Where candidates are tried: in this process, in a pool of processes, or on a Ray cluster.

All give the same outcomes; what differs is the order in which they come.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from sim.errors import ConfigError, nearest
from sim.search.evaluate import Outcome, Scenario, Task

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


class ProcessPool:
    """Tasks on worker processes that read the scenario once, from a file."""

    def __init__(self, pool: ProcessPoolExecutor, scenario_file: Path) -> None:
        self._pool = pool
        self._scenario_file = scenario_file

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        try:
            futures: dict[Future[Outcome], int] = {
                self._pool.submit(_try_out, str(self._scenario_file), task): place for place, task in enumerate(tasks)
            }
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise ConfigError(
                "worker processes of the search died: out of memory, or a script that starts it outside of "
                "`if __name__ == '__main__':`; use fewer workers, or 1."
            ) from None


@contextmanager
def process_pool(scenario: Scenario, workers: int) -> Iterator[Executor]:
    """Workers that start afresh, as on every platform, and end with this process however it ends."""
    with tempfile.TemporaryDirectory(prefix="servecast-") as folder:
        file = Path(folder, "scenario.pickle")
        file.write_bytes(pickle.dumps(scenario))
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent)
        try:
            yield ProcessPool(pool, file)
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A killed parent cannot tell its workers, and their queue stays open: each watches for itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "an initializer runs in a child process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@cache
def _scenario(file: str) -> Scenario:
    """Read once a worker."""
    scenario = pickle.loads(Path(file).read_bytes())  # noqa: S301 - written by the parent process
    assert isinstance(scenario, Scenario), "the parent writes a scenario"
    return scenario


def _try_out(file: str, task: Task) -> Outcome:
    return _scenario(file).try_out(task)


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
