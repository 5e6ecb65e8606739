"""Everything Servecast raises at a user: one sentence that names the place, the rule, what was got and what to do."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Literal


class SimError(Exception):
    """Base of all errors caused by input; the command line prints it and exits with status 2."""


class ConfigError(SimError):
    """An engine argument, a combination of arguments, or an option that breaks a rule."""


class ModelError(SimError):
    """A model that is unknown or whose configuration cannot be read."""


class ProfileError(SimError):
    """A hardware profile or step-time file that is unknown, unreadable or invalid."""


class TraceError(SimError):
    """A trace that cannot be read; the message names file, line and column."""


class RunsError(SimError):
    """Measured runs that cannot be read; the message names file and field."""


class EngineCrashError(SimError):
    """What kills the engine of the simulated vLLM version."""


class DoesNotFitError(SimError):
    """A model that leaves no room for its KV cache on the chosen GPUs."""


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ConfigError where `value` is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}.{nearest(str(value), choices)}")


def listed(names: Sequence[str], conjunction: Literal["and", "or"] = "and") -> str:
    """`a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """` Did you mean a, b or c?` for a misspelt `name`, or an empty string when nothing is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), list(by_lower), n=count, cutoff=0.5)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(by_lower[match] for match in matches)}?"
