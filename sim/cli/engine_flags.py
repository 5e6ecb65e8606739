"""The flags of vLLM on Servecast's commands, and a pasted `vllm serve` line behind `--`."""

from collections.abc import Container, Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from sim.cli import completion
from sim.errors import ConfigError
from sim.specs.serve_command import ParsedServe, parse_engine_args, parse_serve_command
from sim.specs.serve_tokens import UnknownFlagError, split_flags

_META_KEY = "sim.cli.engine_flags"


class EngineCommand(TyperCommand):
    """A command that takes every flag of `vllm serve` beside its own options; `engine_flags` returns what they say.

    Give it as `cls` to `app.command`. A pasted line names the model, so the command's MODEL argument must be optional.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        if ctx.resilient_parsing:  # Tab was pressed
            completion.remember(ctx, args)
            return super().parse_args(ctx, _typed_so_far(args, own))
        before, pasted = _split_at_dashes(args)
        try:
            own_words, engine_words = split_flags(before, own)
        except UnknownFlagError as error:
            from sim.cli.hints import unknown_flag

            raise ConfigError(unknown_flag(error.shown, ctx.command_path, own, takes_engine_flags=True)) from None
        ctx.meta[_META_KEY] = _parse(pasted, engine_words, own)
        _check_required(self.get_params(ctx), own_words)
        return super().parse_args(ctx, own_words)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer.core import CompletionItem  # type: ignore[attr-defined]

        values = completion.values_here(ctx, incomplete)
        flags = completion.engine_flag_names(incomplete) if values is None and incomplete.startswith("-") else []
        ours = [] if values is not None else super().shell_complete(ctx, incomplete)
        return [*ours, *map(CompletionItem, values or flags)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from sim.cli.engine_help import print_engine_flags

        super().format_help(ctx, formatter)
        print_engine_flags()


def engine_flags(ctx: typer.Context) -> ParsedServe:
    """What the engine flags of this call say; ParsedServe.model is that of a pasted line or --model."""
    parsed = ctx.meta[_META_KEY]
    assert isinstance(parsed, ParsedServe), "only commands of class EngineCommand have engine flags"
    return parsed


def chosen_model(model: str | None, parsed: ParsedServe) -> str:
    """The model given as argument or in the pasted line; ConfigError for none, or two that differ."""
    if model and parsed.model and model != parsed.model:
        raise ConfigError(f"Two models are given, {model!r} and {parsed.model!r}; leave one out.")
    if not (chosen := model or parsed.model):
        raise ConfigError("MODEL is missing; give a catalogue name, a Hugging Face id or a path to a config.json.")
    return chosen


def _typed_so_far(args: Sequence[str], own: Container[str]) -> list[str]:
    """The command's own words of a line that may be incomplete or wrong."""
    words, _ = _split_at_dashes([word for word in args if word != "="])
    while words:
        try:
            return split_flags(words, own)[0]
        except ConfigError:
            words.pop()
    return []


def _check_required(params: Iterable[Any], words: Sequence[str]) -> None:
    """Raises ConfigError naming all options that are missing; the parser would name one at a time."""
    given = {word.partition("=")[0] for word in words}
    wanted = [param for param in params if param.required and param.param_type_name == "option"]
    missing = [f"'{param.opts[0]}'" for param in wanted if given.isdisjoint(param.opts)]
    if len(missing) > 1 and given.isdisjoint({"-h", "--help"}):
        raise ConfigError(f"Missing option {missing[0]}, and also {' and '.join(missing[1:])}.")


def _split_at_dashes(args: Sequence[str]) -> tuple[list[str], list[str]]:
    end = args.index("--") if "--" in args else len(args)
    return list(args[:end]), list(args[end + 1 :])


def _parse(pasted: Sequence[str], engine_words: Sequence[str], own: Container[str]) -> ParsedServe:
    """Flags beside a pasted line win over those in it."""
    if not pasted:
        return parse_engine_args(engine_words)
    try:
        return parse_serve_command([*pasted, *engine_words])
    except UnknownFlagError as error:
        if error.shown in own:
            raise ConfigError(f"{error.shown} is Servecast's and not vLLM's; give it before `--`.") from None
        raise
