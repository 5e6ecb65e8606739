"""The commands and what each is for; only the one that runs is imported, so that help is fast."""

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim.cli.completion_shells import INSTALL, SHOW, check_shell, with_shell
from sim.errors import ConfigError, nearest

COMMANDS = {
    "simulate": "Replay a request trace on a model and GPUs; report throughput and latency percentiles.",
    "memory": "Show what a model leaves for the KV cache on each GPU, and whether it fits.",
    "compare": "Replay one trace behind several routers or with arguments varied; or compare results, and assert.",
    "validate": "Replay measured runs; report how far the forecast is off.",
    "optimize": "Find the engine arguments that serve a trace best.",
    "capacity": "Find the highest request rate within limits, and the GPUs that a rate takes.",
    "explain": "Say what limits a run, why its P99 is what it is, and what would help, checked by trying.",
    "calibrate": "Fit a hardware profile to measured runs.",
    "trace": "Inspect, convert, generate, fit, slice, merge and anonymise request traces.",
    "web": "Serve a page on this machine whose every change is simulated.",
    "models": "List the models that are built in, or show one.",
    "gpus": "List the GPUs that are built in, or show one.",
    "version": "Print the version, and whether the engine is compiled.",
}


class LazyGroup(TyperGroup):
    """Lists commands by name and purpose, and imports a command's module when that command is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the base class's signature
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_shell(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in COMMANDS:
            if ctx.resilient_parsing:  # Tab was pressed
                return None, None, []
            raise ConfigError(
                f"{args[0]!r} is no command; there are {', '.join(COMMANDS)}.{nearest(args[0], COMMANDS)}"
            )
        name, _, rest = super().resolve_command(ctx, args)
        return name, _command(args[0]), rest


@cache
def _command(name: str) -> Any:
    """Its flags are made of annotations once, however often it is called."""
    return typer.main.get_command(import_module(f"sim.cli.{name}").app)


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    help="Forecast what a vLLM deployment will do, without a GPU.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from sim.cli.version import version_line

        typer.echo(version_line())
        raise typer.Exit


def _install_completion(shell: str | None) -> None:
    if shell is not None:
        from sim.cli.completion_shells import install

        typer.echo(
            f"Completion for {shell} is in {install(check_shell(shell))}; open a new shell to have it.", err=True
        )
        raise typer.Exit


def _show_completion(shell: str | None) -> None:
    if shell is not None:
        from sim.cli.completion_shells import script

        typer.echo(script(check_shell(shell)))
        raise typer.Exit


@app.callback()
def servecast(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    _install: Annotated[
        str | None,
        typer.Option(
            INSTALL,
            metavar="[SHELL]",
            help="Complete words in bash, zsh or fish.",
            is_eager=True,
            callback=_install_completion,
        ),
    ] = None,
    _show: Annotated[
        str | None,
        typer.Option(
            SHOW, metavar="[SHELL]", help="Print what that installs.", is_eager=True, callback=_show_completion
        ),
    ] = None,
) -> None:
    """Hold the commands."""
