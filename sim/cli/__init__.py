"""The command line: argument handling, calls of `sim.api`, and text. Each command is loaded when it is asked for."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
LEAN = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy would start a thread a core for matrix products, which are not used here
    "PYDANTIC_DISABLE_PLUGINS": "__all__",  # pydantic would search every installed package for plugins
}
MAX_WORD = 400  # letters of an argument that a message repeats
PATIENT_GC = 100_000  # objects until the garbage collector runs: a start makes many, and all of them stay


def main() -> NoReturn:
    """Run the command line and exit: 0 done, 1 an assertion that fails or output that could not be written, 2 bad input, 3 what was
    asked for cannot be had, 128 + n ended by signal n.
    """
    from sim.cli.signals import Ending

    sys.exit(Ending().run(_run_and_settle))


def _run_and_settle() -> int:
    from sim.cli.streams import WRITE_FAILED, prepare

    for name, value in LEAN.items():
        os.environ.setdefault(name, value)
    gc.set_threshold(PATIENT_GC)
    talk = prepare()
    status = run(sys.argv[1:])
    gc.freeze()  # memory is freed with the process; no garbage collection before that
    return status or (WRITE_FAILED if talk.is_lost else 0)


def run(args: Sequence[str]) -> int:
    """The exit status of one call; bad input is one sentence on stderr, a closed pipe is no error."""
    from sim.cli.streams import WRITE_FAILED, discard_output

    try:
        status = _call(list(args) or ["--help"])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except (BrokenPipeError, SystemExit):  # typer makes a broken pipe a SystemExit
        discard_output()
        return 0
    except OSError as error:
        if error.filename is not None:
            _say(f"error: {error.filename}: {error.strerror}.")
            return BAD_INPUT
        discard_output()
        _say(f"write error: {error.strerror}")
        return WRITE_FAILED
    if status == INTERRUPTED:
        _say("interrupted")
    return status


def _call(args: list[str]) -> int:
    from typer import TyperException

    from sim.cli.app import app
    from sim.cli.completion_shells import VARIABLE, answer
    from sim.errors import SimError

    if asked := os.environ.get(VARIABLE):
        return answer(app, asked)
    try:
        status = app(args=args, prog_name="servecast", standalone_mode=False)
    except SimError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    except TyperException as error:
        from sim.cli.hints import no_such_option

        _say(f"error: {no_such_option(error) or error.format_message()}")
        return BAD_INPUT
    return status if isinstance(status, int) else 0


def _say(sentence: str) -> None:
    words = (word if len(word) <= MAX_WORD else f"{word[:MAX_WORD]}..." for word in sentence.split())
    text = " ".join(words).encode(errors="backslashreplace").decode()
    sys.stderr.write(f"servecast: {text}\n")
