"""Signals that ask the process to end: what was begun is cleared away first, as on Ctrl-C."""

import signal
from typing import NoReturn

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Ended(BaseException):
    """The process was asked to end. Not a KeyboardInterrupt, which typer keeps for itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number  # as shells have it


def end_on_signals() -> None:
    """From now on they raise Ended, but for those that the parent had ignored (`nohup`)."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> NoReturn:
    raise Ended(number)
