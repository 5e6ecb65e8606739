"""Completion in bash, zsh and fish: their functions, and the answers to their requests."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from sim.errors import ConfigError, SimError

VARIABLE = "_SERVECAST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
INSTALL, SHOW = "--install-completion", "--show-completion"


def answer(app: typer.Typer, instruction: str) -> int:
    """Do what the shell's completion function asks for; the exit status. Errors in the words typed so far are not reported."""
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    completion_init()
    try:
        return shell_complete(typer.main.get_command(app), {}, "servecast", VARIABLE, instruction)
    except (SimError, typer.TyperException):
        return 1
    except SystemExit as done:  # fish asks for a status
        return int(done.code or 0)


def script(shell: str) -> str:
    """The shell's completion function, to be sourced."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    return get_completion_script(prog_name="servecast", complete_var=VARIABLE, shell=shell)


def install(shell: str) -> Path:
    """Write it where the shell finds it; returns the file."""
    from typer.completion import install as install_script  # type: ignore[attr-defined]

    return install_script(shell=shell, prog_name="servecast", complete_var=VARIABLE)[1]


def with_shell(args: Sequence[str]) -> list[str]:
    """The words, with the user's own shell behind a lone --install-completion or --show-completion."""
    own = Path(os.environ.get("SHELL", "")).name
    return [*args, own] if args and args[-1] in {INSTALL, SHOW} else list(args)


def check_shell(shell: str) -> str:
    """Raises ConfigError for a shell without completion."""
    if shell not in SHELLS:
        raise ConfigError(f"completion is there for {', '.join(SHELLS)}, got {shell!r}; name one: {SHOW} bash.")
    return shell
