"""Where candidates are tried makes no difference to what comes of them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from sim.errors import ConfigError
from sim.search import runner
from sim.search.evaluate import Outcome, Task
from sim.search.runner import executor
from tests.search.makers import make_scenario

SCENARIO = make_scenario()
TASKS = [Task({"max_num_seqs": seqs}) for seqs in (2, 8, 32)] + [Task({"max_model_len": 16})]


def outcomes(name: str, workers: int = 2) -> list[Outcome]:
    """In the order of the tasks, however they came in."""
    with executor(name, SCENARIO, workers) as found:
        return [outcome for _, outcome in sorted(found.run(TASKS), key=lambda item: item[0])]


@pytest.mark.parametrize("alone", [0, 1])
def test_a_pool_of_processes_finds_what_one_process_finds(alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infeasible ones with their reasons, too; whether workers are there from the first task or came later."""
    times_s = iter([0.0] * (1 + alone) + [runner.PATIENCE_S])
    monkeypatch.setattr(runner, "process_time", lambda: next(times_s))
    found = outcomes("process")
    assert found == outcomes("serial")
    assert [outcome.is_feasible for outcome in found] == [True, True, True, False]


def test_a_short_search_starts_no_processes() -> None:
    """Workers would take longer to begin than it takes to end."""
    with executor("process", SCENARIO, 2) as found:
        list(found.run(TASKS))
        assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ray_cluster_finds_what_one_process_finds() -> None:
    """A real one, started on this machine."""
    pytest.importorskip("ray", reason="Ray is an extra and not installed")
    assert outcomes("ray") == outcomes("serial")


def test_an_unknown_executor_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="Did you mean process"):
        executor("proces", SCENARIO, 1)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        executor("process", SCENARIO, 0)


SCRIPT = """
import multiprocessing, sys
from sim.processes import process_pool
from tests.search.test_executors import SCENARIO, TASKS

if __name__ == "__main__":
    with process_pool(SCENARIO, 2) as pool:
        list(pool.run(TASKS))
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        sys.stdin.read()
"""


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="process ids are probed the POSIX way")
def test_workers_of_a_killed_search_end() -> None:
    """`kill -9` leaves nobody behind."""
    search = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert search.stdout is not None
    assert search.stdin is not None
    workers = [int(word) for word in search.stdout.readline().split()]
    assert workers
    assert all(map(is_alive, workers))
    search.send_signal(signal.SIGKILL)
    search.wait()
    deadline = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    search.stdout.close()
    search.stdin.close()
    assert not any(map(is_alive, workers))
