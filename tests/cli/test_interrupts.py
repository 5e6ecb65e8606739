"""Ctrl-C, `timeout` and `kill` end a command at any moment: at once, with one line at most, and with nothing left."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sim.workload.writers import write_trace
from tests.cli.conftest import HEAR_CTRL_C
from tests.measure.makers import OPEN_LOOP, run_json, write_runs
from tests.search.makers import make_trace

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="processes are looked at as Linux has them"
)

SERVECAST = [sys.executable, "-c", f"{HEAR_CTRL_C} from sim.cli import main; main()"]
LINE = "servecast: interrupted\n"
AT_ONCE_S = 2.0  # on a busy machine; a second otherwise
MOMENTS = np.random.default_rng(0).uniform(0, 3, size=2).tolist()


class Running:
    """A command in a process group of its own, with folders of its own, that Ctrl-C can end."""

    def __init__(self, folder: Path, *command: str | Path) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.given = set(folder.iterdir())
        places = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": folder / "cache"}
        for place in places.values():
            place.mkdir()
        self.process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {name: str(place) for name, place in places.items()} | {"MARK": self.mark},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def begins(self) -> None:
        """Waits until the command, not yet the interpreter alone, has the signals."""
        while self.process.poll() is None and not _catches(self.process.pid, signal.SIGTERM):
            time.sleep(0.005)

    def signalled(self, number: signal.Signals, times: int) -> tuple[int, str]:
        """Status and stderr after signals to all of its processes, 100 ms apart at most."""
        for _ in range(times):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
                time.sleep(0.05)
        sent_s = time.monotonic()
        _, err = self.process.communicate(timeout=20)
        assert time.monotonic() - sent_s < AT_ONCE_S
        return self.process.returncode, err

    def assert_nothing_left(self) -> None:
        """No process, no temporary file; the store of an unfinished search alone is kept, with what SQLite had not yet merged."""
        deadline = time.monotonic() + 5
        while (left := list(self._processes())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        files = [path for path in self.folder.rglob("*") if path.is_file() and path not in self.given]
        assert [path for path in files if not path.suffix.startswith(".sqlite")] == []

    def _processes(self) -> Iterator[str]:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (process / "environ").read_bytes():
                    yield (process / "cmdline").read_text()
            except OSError:
                continue


def _catches(process_id: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{process_id}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def search(folder: Path, *prefix: str) -> Running:
    """Some seconds of a search on two workers, whose answer is to be written to a folder."""
    write_trace(make_trace(5000), folder / "trace.csv")
    knobs = "{max_num_seqs: [8, 16, 32, 64, 128], max_num_batched_tokens: [128, 256, 512, 1024, 2048]}"
    (folder / "space.yaml").write_text(f"knobs: {knobs}")
    options = [
        "--gpu",
        "h100-sxm",
        "--trace",
        "trace.csv",
        "--space",
        "space.yaml",
        "--workers",
        "2",
        "--out",
        "new/out",
    ]
    return Running(folder, *prefix, *SERVECAST, "optimize", "Llama-3.1-8B", "--max-model-len", "2048", *options)


@pytest.mark.parametrize(
    ("moment_s", "times"),
    [(moment_s, 1 + number % 2) for number, moment_s in enumerate(MOMENTS)],
    ids=lambda value: f"{value:.2f}s" if isinstance(value, float) else f"{value}x",
)
def test_ctrl_c_ends_a_search(moment_s: float, times: int, tmp_path: Path) -> None:
    """While it works alone, and while workers start or work: they say nothing of it, and a second signal makes no difference."""
    running = search(tmp_path)
    running.begins()
    time.sleep(moment_s)
    assert running.process.poll() is None
    assert running.signalled(signal.SIGINT, times) == (130, LINE)
    running.assert_nothing_left()


def test_sigterm_ends_a_search(tmp_path: Path) -> None:
    """In silence, as other tools; sent to all of its processes, as `timeout` and a container's end do."""
    running = search(tmp_path)
    running.begins()
    time.sleep(2.0)
    assert running.signalled(signal.SIGTERM, 2) == (143, "")
    running.assert_nothing_left()


@pytest.mark.skipif(shutil.which("timeout") is None, reason="there is no `timeout` here")
def test_timeout_ends_a_search(tmp_path: Path) -> None:
    """It sends two signals at once: one to the command, one to the group."""
    running = search(tmp_path, "timeout", "-s", "INT", "2")
    _, err = running.process.communicate(timeout=20)
    assert err == LINE
    running.assert_nothing_left()


@pytest.mark.parametrize(
    "command",
    [
        ["capacity", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", "chat", "--slo", "ttft_p99=1s", "--out", "out"],
        ["simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", "long.csv", "--out", "out"],
        [
            *[
                "simulate",
                "Llama-3.1-8B",
                "--gpu",
                "h100-sxm",
                "--trace",
                "long.csv",
                "--replicas",
                "4",
                "--router",
                "random",
                "--jobs",
                "2",
                "--out",
                "out",
            ]
        ],
    ],
    ids=["capacity", "simulate", "jobs"],
)
def test_ctrl_c_ends_other_commands(command: list[str], tmp_path: Path) -> None:
    """Twice, in the middle of a replay."""
    write_trace(make_trace(100_000), tmp_path / "long.csv")
    running = Running(tmp_path, *SERVECAST, *command)
    running.begins()
    time.sleep(1.0)
    assert running.signalled(signal.SIGINT, 2) == (130, LINE)
    running.assert_nothing_left()


@pytest.mark.parametrize(
    ("command", "moment_s"),
    [
        (["validate", "--plot", "errors.png"], 0.0),
        (["validate", "--plot", "errors.png"], 1.5),
        (["calibrate", "--gpu", "h100-sxm", "--out", "mine.yaml"], 1.5),
    ],
    ids=["validate, at once", "validate, in a replay", "calibrate, in a replay"],
)
def test_ctrl_c_ends_what_replays_measured_runs(command: list[str], moment_s: float, tmp_path: Path) -> None:
    """Twice; neither a plot nor a profile appears."""
    hour = OPEN_LOOP | {"stages": [{"rate_rps": 20.0, "duration_s": 3600.0}]}
    runs = write_runs(tmp_path, *(run_json(id=f"run {number}", workload=hour) for number in range(5)))
    running = Running(tmp_path, *SERVECAST, command[0], runs, *command[1:])
    running.begins()
    time.sleep(moment_s)
    assert running.process.poll() is None
    assert running.signalled(signal.SIGINT, 2) == (130, LINE)
    running.assert_nothing_left()


def test_ctrl_c_ends_the_wait_for_a_locked_store(tmp_path: Path) -> None:
    """Which says what it waits for."""
    with closing(sqlite3.connect(tmp_path / "mine.sqlite", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        command = ["optimize", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", "chat", "--store", "mine.sqlite"]
        running = Running(tmp_path, *SERVECAST, *command)
        assert running.process.stderr is not None
        said = running.process.stderr.readline()
        assert said == "servecast: mine.sqlite is locked; waiting up to 30 s for the process that holds it.\n"
        assert running.signalled(signal.SIGINT, 2) == (130, LINE)


STUCK = """
import threading
from sim.cli import signals
signals.Ending().run(lambda: {stuck})
"""


@pytest.mark.parametrize(
    "stuck",
    ["threading.Lock().acquire() and threading.Event().wait()", "[swallow() for _ in iter(int, 1)]"],
    ids=["waits", "swallows"],
)
def test_what_does_not_unwind_is_cut_off(stuck: str, tmp_path: Path) -> None:
    """A wait without end, and somebody who catches whatever comes."""
    swallow = (
        "def swallow():\n    try:\n        threading.Event().wait(0.01)\n    except BaseException:\n        pass\n"
    )
    running = Running(tmp_path, sys.executable, "-c", f"{HEAR_CTRL_C}\n{swallow}{STUCK.format(stuck=stuck)}")
    running.begins()
    assert running.signalled(signal.SIGINT, 2) == (130, LINE)


def test_ctrl_c_stays_ignored_in_the_background(tmp_path: Path) -> None:
    """A shell starts what runs in the background so that Ctrl-C does not reach it."""
    command = ["sh", "-c", f"trap '' INT; exec {sys.executable} -c 'from sim.cli import main; main()' gpus"]
    running = Running(tmp_path, *command)
    running.begins()
    assert running.signalled(signal.SIGINT, 1) == (0, "")
