"""Shell completion: flags, and names of models, GPUs and traces. It loads only what it needs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from sim.specs.data import data_dir
from sim.specs.engine import ARGUMENTS
from sim.specs.presets import PRESET, PRESETS
from sim.specs.serve_flags import ENGINE_FLAGS, OTHER_FLAGS, SHORT_FLAGS, arity_of

LAUNCH = ("vllm", "serve")  # the beginnings of a pasted line
_WORDS = "sim.cli.completion"  # in the context's meta: all words of the command before the one at the cursor

Values = Callable[[str], list[str]]


def model_names(incomplete: str) -> list[str]:
    """Short names, and hub ids once a slash is typed."""
    from sim.specs.catalog import read_catalog, short_name

    names = [entry.name if "/" in incomplete else short_name(entry.name) for entry in read_catalog()]
    return _beginning(names, incomplete)


def gpu_names(incomplete: str) -> list[str]:
    return _beginning((file.stem for file in data_dir("hardware_profiles").glob("*.yaml")), incomplete)


def trace_names(incomplete: str) -> list[str]:
    from sim.workload.source import bundled_traces

    return _beginning({file.stem for file in bundled_traces()}, incomplete)


def workload_names(incomplete: str) -> list[str]:
    from sim.workload.named import workload_names as known

    return _beginning(known(), incomplete)


def router_names(incomplete: str) -> list[str]:
    from sim.cluster.routers.table import ROUTERS

    return _beginning(ROUTERS, incomplete)


def varied_names(incomplete: str) -> list[str]:
    """Engine arguments with choices of their own, and presets."""
    return _beginning(
        (PRESET, *(name for name, one in ARGUMENTS.items() if one.choices or one.kind == "switch")), incomplete
    )


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the argument MODEL, to which the parser also assigns words that it does not know."""
    values = values_here(ctx, incomplete)
    return model_names(incomplete) if values is None else values


def complete_file(ctx: typer.Context, incomplete: str) -> list[str]:
    """For arguments that are files: those the shell knows itself."""
    return values_here(ctx, incomplete) or []


def remember(ctx: Any, args: Sequence[str]) -> None:
    """Keep the words before the cursor for `values_here`."""
    ctx.meta[_WORDS] = [word for word in args if word != "="]  # bash gives --gpu=h1 as three words


def engine_flag_names(incomplete: str) -> list[str]:
    """vLLM's flags that are simulated; with `--no-` those that switch off."""
    names = [f"--{name}" for name in (*ENGINE_FLAGS, *OTHER_FLAGS)]
    switches = [f"--no-{flag.name}" for flag in ENGINE_FLAGS.values() if flag.argument.kind == "switch"]
    return [name for name in (*names, *switches) if name.startswith(incomplete)]


def values_here(ctx: Any, incomplete: str) -> list[str] | None:
    """Completions if the flag before takes a value, or in a pasted line; None anywhere else."""
    words: list[str] = ctx.meta.get(_WORDS, [])
    if words and (values := _values_of(ctx, words[-1])):
        return values(incomplete)
    if "--" not in words:
        return None
    pasted = words[words.index("--") + 1 :]
    if len(pasted) < len(LAUNCH):
        return _beginning(LAUNCH[len(pasted) : len(pasted) + 1], incomplete)
    return engine_flag_names(incomplete) if incomplete.startswith("-") else model_names(incomplete)


def _values_of(ctx: Any, flag: str) -> Values | None:
    """Completions of a flag's value; None for a word that is no flag, or a flag without a value."""
    if not flag.startswith("-"):
        return None
    for param in ctx.command.get_params(ctx):
        if flag in param.opts and not getattr(param, "is_flag", False):
            return lambda incomplete: [item.value for item in param.shell_complete(ctx, incomplete)]
    name = flag.lstrip("-").replace("_", "-")
    name = name if flag.startswith("--") else SHORT_FLAGS.get(name, name)
    if arity_of(name) in {None, "none"}:
        return None
    if name == PRESET:
        return lambda incomplete: _beginning(PRESETS, incomplete)
    argument = ARGUMENTS.get(name.replace("-", "_"))
    return lambda incomplete: _beginning(argument.choices if argument else (), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
