"""Engine arguments that are varied one at a time, by the values that their declarations name or that are given."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.errors import ConfigError, nearest
from sim.search.space_file import parse_values
from sim.specs.engine import ARGUMENTS, EngineConfig
from sim.specs.presets import PRESET, PRESETS, preset_arguments

Change = tuple[str, Mapping[str, Any]]
"""What it is called, as in `batching=static`, and the arguments that it sets."""


def variations(engine: EngineConfig, vary: Sequence[str] | None) -> list[Change]:
    """The changes to `engine` that are asked for, without those that change nothing; with None every value that no vLLM has.

    Each of `vary` is an argument, of which all choices are taken, or one with values: `max_num_seqs=64,256`; or `preset`, whose arguments
    take the place of those given. Raises ConfigError for another, and for a value that the argument never has.
    """
    asked = _what_ifs() if vary is None else (pair for text in vary for pair in _asked(text))
    changes = [(f"{name}={value}", _arguments(name, value)) for name, value in asked]
    for _, change in changes:
        _check_values(change)
    return [
        (called, change) for called, change in changes if any(getattr(engine, name) != change[name] for name in change)
    ]


def _what_ifs() -> Iterator[tuple[str, Any]]:
    for name, argument in ARGUMENTS.items():
        yield from ((name, value) for value in argument.what_ifs)


def _asked(text: str) -> Iterator[tuple[str, Any]]:
    spelled, _, values = text.partition("=")
    name = spelled.replace("-", "_")
    if name not in (known := (*ARGUMENTS, PRESET)):
        raise ConfigError(f"{spelled!r} is no engine argument that could be varied.{nearest(name, known)}")
    yield from ((name, value) for value in (parse_values(name, values) if values else _choices(name)))


def _check_values(change: Mapping[str, Any]) -> None:
    """Raises ConfigError for a value that an argument never has, whatever the others are."""
    for name, value in change.items():
        if ARGUMENTS[name].kind != "object" and value != getattr(EngineConfig(), name):
            ARGUMENTS[name].check(name, value)


def _arguments(name: str, value: Any) -> Mapping[str, Any]:
    return preset_arguments(value, PRESET) if name == PRESET else {name: value}


def _choices(name: str) -> Sequence[Any]:
    if name == PRESET:
        return tuple(PRESETS)
    argument = ARGUMENTS[name]
    if not argument.choices and argument.kind != "switch":
        raise ConfigError(f"{name} has no list of choices to vary; give some, as in {name}=VALUE,VALUE.")
    return argument.choices or (True, False)
