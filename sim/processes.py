"""A pool of worker processes that a signal can interrupt at any time: one pipe a worker, no threads, locks or files in the parent.

`concurrent.futures` does not allow that: interrupted while it holds one of its locks it hangs, and starting workers write tracebacks.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sim.errors import ConfigError

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


Task = TypeVar("Task")
Outcome = TypeVar("Outcome")
Task_contra = TypeVar("Task_contra", contravariant=True)
Outcome_co = TypeVar("Outcome_co", covariant=True)


class Scenario(Protocol[Task_contra, Outcome_co]):
    """What all tasks have in common; it is pickled and sent to each worker."""

    def try_out(self, task: Task_contra, /) -> Outcome_co:
        """The outcome of a task."""
        ...


class Worker(NamedTuple):
    process: SpawnProcess
    pipe: Any  # multiprocessing.connection.Connection: tasks go in, outcomes come out


class ProcessPool(Generic[Task, Outcome]):
    """Runs tasks on worker processes, each of which has the scenario."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        """Yields the place and outcome of each task as it finishes. Raises ConfigError if a worker has died."""
        waiting = iter(enumerate(tasks))
        places: dict[Any, int] = {}
        for worker in self._workers:
            _hand_out(waiting, worker.pipe, places)
        while places:
            for pipe in wait(list(places)):
                place, outcome = places.pop(pipe), _outcome(pipe)
                _hand_out(waiting, pipe, places)
                yield place, outcome


def _hand_out(waiting: Iterator[tuple[int, Any]], pipe: Any, places: dict[Any, int]) -> None:
    """Send the next task, if there is one, to the worker behind `pipe`."""
    for place, task in waiting:
        places[pipe] = place
        with suppress(OSError):  # that the worker has died is noticed when its outcome is read
            pipe.send(task)
        return


def _outcome(pipe: Any) -> Any:
    try:
        found = pipe.recv()
    except (EOFError, OSError):
        raise ConfigError(
            "worker processes died: out of memory, or a script that starts them outside of "
            "`if __name__ == '__main__':`; use fewer workers, or 1."
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def process_pool(scenario: Scenario[Task, Outcome], workers: int) -> Iterator[ProcessPool[Task, Outcome]]:
    """Spawned workers, which end with this process in whatever way it ends."""
    resource_tracker.ensure_running()  # else the first worker starts it, and it unblocks signals then
    started: list[Worker] = []
    try:
        for _ in range(workers):
            with _deaf():
                started.append(_start())
        data = _pickled(scenario)
        for worker in started:
            with suppress(OSError):
                worker.pipe.send_bytes(data)
        yield ProcessPool(started)
    finally:
        for worker in started:
            worker.process.kill()
        for worker in started:
            worker.process.join()
            worker.pipe.close()


def _pickled(scenario: object) -> bytes:
    try:
        return pickle.dumps(scenario)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"what is simulated cannot be sent to other processes: {error}; use one process.") from None


@contextmanager
def _deaf() -> Iterator[None]:
    """Block signals; a process started meanwhile keeps them blocked for good, since its parent ends it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _start() -> Worker:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return Worker(process, ours)


def _work(pipe: "Connection[Any, Any]") -> None:
    """The worker: tries out tasks from its pipe until the parent closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    with suppress(EOFError, OSError):
        scenario: Scenario[Any, Any] = pickle.loads(pipe.recv_bytes())  # noqa: S301 - written by the parent process
        while True:
            pipe.send(_try_out(scenario, pipe.recv()))


def _try_out(scenario: Scenario[Any, Any], task: Any) -> Any:
    try:
        return scenario.try_out(task)
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        return error


def _end_with_parent() -> None:
    """End this worker, even within a task, when the parent is gone: a thread waits for that, as a killed parent tells nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a child process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
