"""Hints for a flag that a command does not have: a similar one, or the command that has it."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import typer

from sim.errors import listed
from sim.specs.flag_hints import did_you_mean, likely_flags
from sim.specs.serve_flags import known_flags

MOST_NAMED = 3  # commands
WHY_NOT = {
    (
        "servecast capacity",
        "users",
    ): "users send when they are answered, at no given rate, so that there is no highest one"
}
"""Why a command does not have a flag that others have, where that is not plain."""


def unknown_flag(spelled: str, command: str, own: Iterable[str], *, takes_engine_flags: bool) -> str:
    """The sentence for a flag that `command` (as it is typed), with its `own` flags, does not have."""
    name = spelled.partition("=")[0].lstrip("-")
    there = [*own, *(known_flags() if takes_engine_flags else ())]
    hint = did_you_mean(likely_flags(name, [flag.lstrip("-") for flag in there if flag.startswith("--")]))
    others = {path: flags for path, flags in _commands() if path != command}
    having = [path for path, flags in others.items() if f"--{name}" in flags]
    what = f"{spelled} is not a flag of `{command}`{' or of vllm serve' if takes_engine_flags else ''}"
    if having:
        why = f": {WHY_NOT[command, name]}" if (command, name) in WHY_NOT else ""
        return f"{what}{why}; {_listed(having)} {'has' if len(having) == 1 else 'have'} it.{hint}"
    for path, flags in others.items() if not hint else ():
        if found := likely_flags(name, [flag.lstrip("-") for flag in flags]):
            return f"{what}; `{path}` has --{found[0]}."
    return f"{what}.{hint or f' `{command} --help` lists them.'}"


def no_such_option(error: Any) -> str | None:
    """The sentence for the parser's own error on an unknown flag; None for any other error."""
    if type(error).__name__ != "NoSuchOption" or error.ctx is None:
        return None
    own = _names(error.ctx.command, error.ctx)
    return unknown_flag(error.option_name, error.ctx.command_path, own, takes_engine_flags=False)


def _commands() -> Iterator[tuple[str, list[str]]]:
    """Each command with its own flags; this loads all commands, so it is only called for errors."""
    from sim.cli.app import COMMANDS

    for name in COMMANDS:
        command: Any = typer.main.get_command(import_module(f"sim.cli.{name}").app)
        for part, one in (getattr(command, "commands", None) or {"": command}).items():
            flags = _names(one, typer.Context(one))
            yield f"servecast {name} {part}".strip(), [flag for flag in flags if flag != "--help"]


def _names(command: Any, ctx: Any) -> list[str]:
    return [name for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)]


def _listed(commands: list[str]) -> str:
    """The first few of them."""
    named = [f"`{command}`" for command in commands]
    if len(named) > MOST_NAMED:
        return f"{', '.join(named[:MOST_NAMED])} and others"
    return listed(named)
