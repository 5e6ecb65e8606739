"""How long prompts and outputs are: distributions over integers, and the written form of each."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from sim.errors import ConfigError, nearest
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.workload.columns import MAX_TOKENS, Ints

FORMS = (
    "600, uniform:100,900, lognormal:600,0.8,8192 (median, sigma, maximum), pareto:600,0.8,0.05,1.5,8192 (a lognormal's median and "
    "sigma, share and exponent of the tail, maximum), geometric:4 (mean), choice:512=0.3,1024=0.7 or histogram:1-256=0.3,257-1024=0.7"
)


NEIGHBOURS = 16


class Lengths(ABC):
    """A distribution over integers of at least 1; its text is its written form."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """`count` independent lengths."""

    def draw_evenly(self, count: int, rng: np.random.Generator) -> Ints:
        """Each length nearly as often as it should be, in any order: of a larger draw one of so many neighbours each."""
        neighbours = np.sort(self.draw(NEIGHBOURS * count, rng)).reshape(count, NEIGHBOURS)
        return rng.permutation(neighbours[np.arange(count), rng.integers(NEIGHBOURS, size=count)])


class Counts(Lengths):
    """Lengths whose mean is known, as numbers of turns must have it."""

    @property
    @abstractmethod
    def mean(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Fixed(Counts):
    tokens: int

    def __post_init__(self) -> None:
        _check_tokens(self.tokens)

    @property
    def mean(self) -> float:
        return self.tokens

    def draw(self, count: int, rng: np.random.Generator) -> Ints:  # noqa: ARG002
        return np.full(count, self.tokens, dtype=np.int64)

    def __str__(self) -> str:
        return str(self.tokens)


@dataclass(frozen=True, slots=True)
class Uniform(Counts):
    """All integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_tokens(self.low)
        _check_tokens(self.high)
        if self.low > self.high:
            raise ConfigError(f"uniform lengths must have low <= high, got {self.low} and {self.high}; swap them.")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        return rng.integers(self.low, self.high, size=count, endpoint=True, dtype=np.int64)

    def __str__(self) -> str:
        return f"uniform:{self.low},{self.high}"


@dataclass(frozen=True, slots=True)
class Geometric(Counts):
    """1 and more: after each of a conversation's turns another follows with the same probability."""

    mean_length: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean_length <= MAX_TOKENS:
            raise ConfigError(
                f"the mean of geometric lengths must be from 1 to {MAX_TOKENS:,}, got {self.mean_length}."
            )

    @property
    def mean(self) -> float:
        return self.mean_length

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        return np.minimum(rng.geometric(1 / self.mean_length, size=count), MAX_TOKENS)

    def __str__(self) -> str:
        return f"geometric:{plain(self.mean_length)}"


@dataclass(frozen=True, slots=True)
class Lognormal(Lengths):
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

    def __str__(self) -> str:
        return f"lognormal:{plain(self.median)},{plain(self.sigma)},{self.high}"


@dataclass(frozen=True, slots=True)
class ParetoTail(Lengths):
    """Lognormal lengths of which the longest `share` have a Pareto tail of exponent `alpha` from where they begin."""

    median: float
    sigma: float
    share: float
    alpha: float
    high: int

    def __post_init__(self) -> None:
        Lognormal(self.median, self.sigma, self.high)
        if not (0 < self.share < 1 and 0.1 <= self.alpha <= 100):
            raise ConfigError(
                f"a Pareto tail needs a share between 0 and 1 and an exponent from 0.1 to 100, got {self.share} and {self.alpha}."
            )

    @property
    def begins_at(self) -> float:
        """The length that the longest `share` exceed."""
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(1 - self.share))

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        body = rng.lognormal(np.log(self.median), self.sigma, size=count)
        tail = self.begins_at * (1 + rng.pareto(self.alpha, size=count))
        within = body <= self.begins_at if self.sigma else rng.random(count) >= self.share
        return np.clip(np.rint(np.where(within, body, tail)), 1, self.high).astype(np.int64)

    def __str__(self) -> str:
        numbers = (self.median, self.sigma, self.share, self.alpha)
        return f"pareto:{','.join(map(plain, numbers))},{self.high}"


@dataclass(frozen=True, slots=True)
class Choice(Counts):
    """Certain lengths, each with a weight."""

    weights: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        for tokens, weight in self.weights:
            _check_tokens(tokens)
            _check_weight(str(tokens), weight)

    @property
    def mean(self) -> float:
        return sum(tokens * weight for tokens, weight in self.weights) / sum(weight for _, weight in self.weights)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        tokens, weights = zip(*self.weights, strict=True)
        return rng.choice(np.array(tokens, dtype=np.int64), size=count, p=np.array(weights) / sum(weights))

    def __str__(self) -> str:
        return f"choice:{','.join(f'{tokens}={plain(weight)}' for tokens, weight in self.weights)}"


@dataclass(frozen=True, slots=True)
class Histogram(Lengths):
    """Bins `(low, high, weight)`, both ends included, within each of which all lengths are equally likely."""

    bins: tuple[tuple[int, int, float], ...]

    def __post_init__(self) -> None:
        for low, high, weight in self.bins:
            Uniform(low, high)
            _check_weight(f"{low}-{high}", weight)

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        low, high, weights = map(np.array, zip(*self.bins, strict=True))
        chosen = rng.choice(len(self.bins), size=count, p=weights / weights.sum())
        return rng.integers(low[chosen], high[chosen], endpoint=True, dtype=np.int64)

    def draw_evenly(self, count: int, rng: np.random.Generator) -> Ints:
        """As many of each bin as it should have, to the nearest."""
        low, high, weights = map(np.array, zip(*self.bins, strict=True))
        ends = np.cumsum(weights) / weights.sum()
        chosen = np.searchsorted(ends[:-1], (np.arange(count) + rng.random()) / max(1, count), side="right")
        return rng.permutation(rng.integers(low[chosen], high[chosen], endpoint=True, dtype=np.int64))

    def __str__(self) -> str:
        return f"histogram:{','.join(f'{low}-{high}={plain(weight)}' for low, high, weight in self.bins)}"


def parse_lengths(text: str) -> Lengths:
    """A distribution from its written form: FORMS. Raises ConfigError for anything else."""
    kind, _, arguments = text.partition(":") if ":" in text else ("fixed", "", text)
    if kind not in _KINDS:
        raise ConfigError(f"the lengths {text!r} have an unknown kind {kind!r}; write {FORMS}.{nearest(kind, _KINDS)}")
    try:
        return _KINDS[kind](re.split(r"\s*,\s*", arguments.strip()))
    except (ValueError, TypeError):
        raise ConfigError(f"the lengths {text!r} cannot be read; write {FORMS}.") from None


def plain(value: float) -> str:
    """A number as short as it can be read again."""
    return repr(int(value)) if value == int(value) else repr(float(value))


def _choice(items: list[str]) -> Choice:
    pairs = [item.split("=") for item in items]
    return Choice(tuple((int(tokens), float(weight)) for tokens, weight in pairs))


def _histogram(items: list[str]) -> Histogram:
    pairs = [(*item.partition("=")[0].split("-"), item.partition("=")[2]) for item in items]
    return Histogram(tuple((int(low), int(high), float(weight)) for low, high, weight in pairs))


def _lognormal(items: list[str]) -> Lognormal:
    median, sigma, high = items
    return Lognormal(float(median), float(sigma), int(high))


def _pareto(items: list[str]) -> ParetoTail:
    median, sigma, share, alpha, high = items
    return ParetoTail(float(median), float(sigma), float(share), float(alpha), int(high))


def _geometric(items: list[str]) -> Geometric:
    (mean,) = items
    return Geometric(float(mean))


_KINDS: dict[str, Callable[[list[str]], Lengths]] = {
    "fixed": lambda items: Fixed(*map(int, items)),
    "uniform": lambda items: Uniform(*map(int, items)),
    "lognormal": _lognormal,
    "pareto": _pareto,
    "geometric": _geometric,
    "choice": _choice,
    "histogram": _histogram,
}


def _check_tokens(tokens: int) -> None:
    if not 1 <= tokens <= MAX_TOKENS:
        raise ConfigError(f"a length must be from 1 to {MAX_TOKENS:,} tokens, got {tokens}.")


def _check_weight(length: str, weight: float) -> None:
    if not (weight > 0 and is_sane(weight)):
        raise ConfigError(
            f"the weight of length {length} must be above 0, and from {SMALLEST:g} to {LARGEST:g}, got {weight}."
        )
