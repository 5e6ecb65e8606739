"""Ctrl-C and its like: the first signal ends the command within a second, and those that follow change nothing."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

NUMBERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
HAS_TIMER = hasattr(signal, "setitimer")
GRACE_S = 0.6  # to unwind: close files and remove what was half written; whatever takes longer is cut off
SHOW_CURSOR = b"\x1b[?25h\n"  # which a progress bar has hidden


class Ended(BaseException):
    """The process was asked to end. Not a KeyboardInterrupt, which typer keeps for itself."""


class Ending:
    """Runs a command so that signals end it with status 128 + the signal, as shells have it; after Ctrl-C a line says so.

    Signals that the parent had ignored stay ignored: SIGHUP under `nohup`, SIGINT in a shell's background.
    """

    def __init__(self) -> None:
        self._by: int | None = None
        self._is_running = True

    def run(self, command: Callable[[], int]) -> int:
        """The status of `command`, unless a signal ends the process."""
        status = 0
        try:
            for number in NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._unwind)
            status = command()
        except Ended:
            pass
        finally:
            self._is_running = False
        if self._by is not None:
            self._end(self._by)
        return status

    def _unwind(self, number: int, _: FrameType | None) -> None:
        """Raises Ended, once. If the exception is swallowed or the command blocks, a timer ends the process."""
        if self._by is not None or not self._is_running:
            return
        self._by = number
        for other in NUMBERS:
            signal.signal(other, signal.SIG_IGN)
        if HAS_TIMER:
            signal.signal(signal.SIGALRM, lambda *_: self._end(number))
            signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        _silence()
        raise Ended

    def _end(self, number: int) -> NoReturn:
        """Exits at once: the interpreter's normal exit is slow and waits for threads."""
        if HAS_TIMER:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        if number == signal.SIGINT:
            with suppress(OSError):
                os.write(2, b"servecast: interrupted\n")
        os._exit(128 + number)


def _silence() -> None:
    """Shows the cursor and drops the messages of code that a signal interrupts."""
    with suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            os.write(2, SHOW_CURSOR)
    with suppress(OSError):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open to the end
