"""Options of routers as they are given, on a command line, in a file or in Python, and the rules they keep."""

from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple

from sim.errors import ConfigError, nearest


def option(default: Any, *, at_least: float | None = None, at_most: float | None = None) -> Any:
    """A field of a router's options, with the range of its values."""
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most})


class Named(NamedTuple):
    """A router's name and its options as they were given."""

    name: str
    options: dict[str, Any]


def named(given: str | Mapping[str, Any]) -> Named:
    """`llm_d`, `llm_d:queue=2,prefix=3` or `{policy: llm_d, queue: 2}` taken apart."""
    if isinstance(given, str):
        name, colon, rest = given.partition(":")
        return Named(name.strip(), dict(_pair(name, item) for item in rest.split(",")) if colon else {})
    options = dict(given)
    if not isinstance(options.get("policy"), str):
        raise ConfigError(f"router must have a `policy`, the name of a router, got {options!r}.")
    return Named(options.pop("policy"), options)


def _pair(name: str, item: str) -> tuple[str, Any]:
    key, equals, value = item.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise ConfigError(f"options of router {name} must be written name=value with commas between, got {item!r}.")
    return key.strip(), _number(value.strip())


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def checked(name: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An object of that kind with these options. Raises ConfigError that names the option, its rule and what was got."""
    known = {known.name: known for known in fields(kind)}
    for key in given:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"router {name} has no option {key!r}: {has}.{nearest(str(key), known)}")
    return kind(**{key: _checked(name, known[key], value) for key, value in given.items()})


def _checked(name: str, known: "Field[Any]", value: Any) -> Any:
    kind: type = type(known.default)
    least, most = known.metadata["at_least"], known.metadata["at_most"]
    is_number = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    is_of_kind = isinstance(value, bool) if kind is bool else is_number
    if is_of_kind and (least is None or value >= least) and (most is None or value <= most):
        return kind(value)
    bounds = [f"of at {end} {bound:g}" for end, bound in (("least", least), ("most", most)) if bound is not None]
    what = " ".join([{bool: "true or false", float: "a number", int: "an integer"}[kind], " and ".join(bounds)])
    raise ConfigError(f"router {name}: {known.name} must be {what.strip()}, got {value!r}.")
