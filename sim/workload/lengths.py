"""How long prompts and outputs are: distributions over lengths in tokens."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sim.errors import ConfigError, nearest
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.workload.columns import MAX_TOKENS, Ints

FORMS = "600, uniform:100,900, lognormal:600,0.8,8192 (median, sigma, maximum) or choice:512=0.3,1024=0.7"


class Lengths(Protocol):
    """A distribution over integers of at least 1."""

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """`count` independent lengths."""


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: int

    def __post_init__(self) -> None:
        _check_tokens(self.tokens)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:  # noqa: ARG002
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """All integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_tokens(self.low)
        _check_tokens(self.high)
        if self.low > self.high:
            raise ConfigError(f"uniform lengths must have low <= high, got {self.low} and {self.high}; swap them.")

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Rounded lognormal lengths; values outside 1 to `high` are set to the nearer end."""

    median: float
    sigma: float
    high: int

    def __post_init__(self) -> None:
        _check_tokens(self.high)
        if not (1 <= self.median <= self.high and 0 <= self.sigma <= 10):
            raise ConfigError(
                f"lognormal lengths need 1 <= median <= maximum and sigma from 0 to 10, got {self.median}, {self.sigma}, {self.high}."
            )

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        lengths = np.rint(rng.lognormal(np.log(self.median), self.sigma, size=count))
        return np.clip(lengths, 1, self.high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Choice:
    """Certain lengths, each with a weight."""

    weights: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        for tokens, weight in self.weights:
            _check_tokens(tokens)
            if not (weight > 0 and is_sane(weight)):
                raise ConfigError(
                    f"the weight of length {tokens} must be above 0, and from {SMALLEST:g} to {LARGEST:g}, got {weight}."
                )

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        tokens, weights = zip(*self.weights, strict=True)
        return rng.choice(np.array(tokens, dtype=np.int64), size=count, p=np.array(weights) / sum(weights))


def parse_lengths(text: str) -> Lengths:
    """A distribution from its written form: FORMS. Raises ConfigError for anything else."""
    kind, _, arguments = text.partition(":") if ":" in text else ("fixed", "", text)
    if kind not in _KINDS:
        raise ConfigError(f"the lengths {text!r} have an unknown kind {kind!r}; write {FORMS}.{nearest(kind, _KINDS)}")
    try:
        return _KINDS[kind](re.split(r"\s*,\s*", arguments.strip()))
    except (ValueError, TypeError):
        raise ConfigError(f"the lengths {text!r} cannot be read; write {FORMS}.") from None


def _choice(items: list[str]) -> Choice:
    pairs = [item.split("=") for item in items]
    return Choice(tuple((int(tokens), float(weight)) for tokens, weight in pairs))


def _lognormal(items: list[str]) -> Lognormal:
    median, sigma, high = items
    return Lognormal(float(median), float(sigma), int(high))


_KINDS: dict[str, Callable[[list[str]], Lengths]] = {
    "fixed": lambda items: Fixed(*map(int, items)),
    "uniform": lambda items: Uniform(*map(int, items)),
    "lognormal": _lognormal,
    "choice": _choice,
}


def _check_tokens(tokens: int) -> None:
    if not 1 <= tokens <= MAX_TOKENS:
        raise ConfigError(f"a length must be from 1 to {MAX_TOKENS:,} tokens, got {tokens}.")
