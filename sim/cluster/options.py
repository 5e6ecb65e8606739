"""Options of routers and autoscalers as they are given, on a command line, in a file or in Python, and the rules they keep."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar, cast

from sim.errors import ConfigError, check_choice, nearest

T = TypeVar("T")


def option(
    default: Any,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: Sequence[str] = (),
    kind: type | None = None,
) -> Any:
    """A field of options: the range of its numbers or the texts to choose from; its kind is that of the default, if not given."""
    rules = {"at_least": at_least, "at_most": at_most, "choices": choices, "kind": kind or type(default)}
    return field(default=default, metadata=rules)


MOST = 1e9
"""No option is larger: so many seconds are 32 years, and more would leave no digits for the steps of an engine."""


class Named(NamedTuple):
    """A policy's name and its options as they were given."""

    name: str
    options: dict[str, Any]


def named(what: str, given: str | Mapping[str, Any]) -> Named:
    """`llm_d`, `llm_d:queue=2,prefix=3` or `{policy: llm_d, queue: 2}` taken apart; `what` it is stands in errors."""
    if isinstance(given, str):
        name, colon, rest = given.partition(":")
        return Named(name.strip(), dict(_pair(f"{what} {name}", item) for item in rest.split(",")) if colon else {})
    options = dict(given)
    if not isinstance(options.get("policy"), str):
        raise ConfigError(f"{what} must have a `policy`, the name of {article(what)}, got {options!r}.")
    return Named(options.pop("policy"), options)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise ConfigError(f"options of {name} must be written name=value with commas between, got {item!r}.")
    return key.strip(), _number(value.strip())


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def article(noun: str) -> str:
    """A noun with its indefinite article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def checked(what: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An object of that kind with these options. Raises ConfigError that names `what` it is, the option, its rule and what was got."""
    known = {known.name: known for known in fields(kind)}
    for key in given:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"{what} has no option {key!r}: {has}.{nearest(str(key), known)}")
    return kind(**{key: _checked(what, known[key], value) for key, value in given.items()})


def parsed(what: str, kind: type[T], given: str | Mapping[str, Any]) -> T:
    """Options of the one thing there is, `capacity_gib=64,lookup_ms=2` or a mapping; ConfigError for an unknown one or a broken rule."""
    options = dict(_pair(what, item) for item in given.split(",") if item) if isinstance(given, str) else given
    return cast("T", checked(what, kind, options))


def chosen(what: str, table: Mapping[str, type[T]], given: str | Mapping[str, Any]) -> T:
    """What was asked for, by name or with options; ConfigError for an unknown one or a broken rule."""
    name, options = named(what, given)
    check_choice(what, name, table)
    return cast("T", checked(f"{what} {name}", table[name], options))


def _checked(what: str, known: "Field[Any]", value: Any) -> Any:
    kind: type = known.metadata["kind"]
    if kind is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{what}: {known.name} must be a list, got {value!r}.")
        return tuple(value)  # its class has the rules
    if kind is str:
        check_choice(f"{what}: {known.name}", value, known.metadata["choices"])
        return value
    least, most = known.metadata["at_least"], known.metadata["at_most"]
    is_number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    is_of_kind = isinstance(value, bool) if kind is bool else is_number
    if is_number and value > MOST and most is None:
        raise ConfigError(f"{what}: {known.name} must be at most {MOST:g}, got {value!r}.")
    if is_of_kind and (least is None or value >= least) and (most is None or value <= most):
        return kind(value)
    bounds = [f"of at {end} {bound:g}" for end, bound in (("least", least), ("most", most)) if bound is not None]
    words = " ".join([{bool: "true or false", float: "a number", int: "an integer"}[kind], " and ".join(bounds)])
    raise ConfigError(f"{what}: {known.name} must be {words.strip()}, got {value!r}.")
