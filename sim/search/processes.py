"""Worker processes that no signal entangles: a pipe each, and no threads, locks, semaphores or files in the parent.

`concurrent.futures` has all of these: interrupted inside one of its locks it hangs, and workers that are starting write tracebacks.
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
from typing import Any, NamedTuple

from sim.errors import ConfigError
from sim.search.evaluate import Outcome, Scenario, Task

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Worker(NamedTuple):
    process: SpawnProcess
    pipe: Any  # multiprocessing.connection.Connection: tasks go in, outcomes come out


class ProcessPool:
    """Tasks on worker processes that hold the scenario."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        """Each task's place and outcome, as they finish. Raises ConfigError where a worker has died."""
        waiting = iter(enumerate(tasks))
        places: dict[Any, int] = {}
        for worker in self._workers:
            _hand_out(waiting, worker.pipe, places)
        while places:
            for pipe in wait(list(places)):
                place, outcome = places.pop(pipe), _outcome(pipe)
                _hand_out(waiting, pipe, places)
                yield place, outcome


def _hand_out(waiting: Iterator[tuple[int, Task]], pipe: Any, places: dict[Any, int]) -> None:
    """The next task, if there is one."""
    for place, task in waiting:
        places[pipe] = place
        with suppress(OSError):  # a worker that is gone is noticed when its outcome is due
            pipe.send(task)
        return


def _outcome(pipe: Any) -> Outcome:
    try:
        found: Outcome | Exception = pipe.recv()
    except (EOFError, OSError):
        raise ConfigError(
            "worker processes of the search died: out of memory, or a script that starts it outside of "
            "`if __name__ == '__main__':`; use fewer workers, or 1."
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def process_pool(scenario: Scenario, workers: int) -> Iterator[ProcessPool]:
    """Workers that start afresh, as on every platform, and end with this process however it ends."""
    resource_tracker.ensure_running()  # it is started with the first worker otherwise, and lets signals through then
    started: list[Worker] = []
    try:
        for _ in range(workers):
            with _deaf():
                started.append(_start())
        data = pickle.dumps(scenario)
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


@contextmanager
def _deaf() -> Iterator[None]:
    """Signals wait, and a process started meanwhile never hears them: its parent ends it."""
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
    """Tries out what it is sent, until nobody is there to send."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    with suppress(EOFError, OSError):
        scenario: Scenario = pickle.loads(pipe.recv_bytes())  # noqa: S301 - written by the parent process
        while True:
            pipe.send(_try_out(scenario, pipe.recv()))


def _try_out(scenario: Scenario, task: Task) -> Outcome | Exception:
    try:
        return scenario.try_out(task)
    except Exception as error:  # noqa: BLE001 - raised again in the parent
        return error


def _end_with_parent() -> None:
    """A killed parent cannot tell its workers: each watches for itself, to end in the middle of a task as well."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a child process"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
