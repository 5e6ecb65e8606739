"""A progress bar with ETA on stderr, for long runs on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 1.5
REFRESH_S = 0.1


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for (done, all), or None where stderr is no terminal; the bar shows after some seconds of waiting."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    due_s = time.monotonic() + PATIENCE_S

    def advance(done: int, total: int) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s:
            bar.start()
            bar.update(task, completed=done, total=total)
            due_s = time.monotonic() + REFRESH_S

    try:
        yield advance
    finally:
        bar.stop()
