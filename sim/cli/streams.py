"""stdin, stdout and stderr in any state that a shell may leave them in: any encoding, closed, on a full disk."""

import io
import os
import sys
from typing import Any

WRITE_FAILED = 1  # as of `cat` and its kin


class Talk(io.TextIOWrapper):
    """stderr. Whether or not it can be written to, the work goes on; `is_lost` is set if a message could not be written."""

    def __init__(self) -> None:
        self._raw = _Deaf(sys.__stderr__.fileno() if sys.__stderr__ else 2, "w", closefd=False)
        encoding = sys.__stderr__.encoding if sys.__stderr__ else "utf-8"
        buffered: Any = io.BufferedWriter(self._raw)
        super().__init__(buffered, encoding, "backslashreplace", line_buffering=True)

    @property
    def is_lost(self) -> bool:
        return self._raw.is_lost


class _Deaf(io.FileIO):
    is_lost = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            self.is_lost = True
            return memoryview(data).nbytes


def prepare() -> Talk:
    """Makes all three usable, for the life of this process; characters that an encoding lacks are written as escapes."""
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        _occupy(descriptor, mode)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.FileIO(0, "r", closefd=False))
    sys.stdout = sys.stdout or io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = talk = Talk()
    return talk


def _occupy(descriptor: int, mode: int) -> None:
    """A descriptor that the shell closed fails as a closed one does, and no file that is opened later comes to stand there."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, mode)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)


def discard_output() -> None:
    """What is left to be written to stdout is dropped, so that the interpreter reports no further error when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
