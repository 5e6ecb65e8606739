"""How long users think and tools run: distributions over seconds, and the written form of each."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from sim.errors import ConfigError, nearest
from sim.workload.columns import MAX_SECONDS, Floats
from sim.workload.lengths import plain

FORMS = "5, exponential:5 (mean) or lognormal:2,1.5,600 (median, sigma, maximum)"


@dataclass(frozen=True)
class Waits(ABC):
    """A distribution over seconds of at least 0; its fields are numbers, its text is its written form."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """`count` independent waits."""

    def __str__(self) -> str:
        kind = next(name for name, made in _KINDS.items() if made is type(self))
        numbers = ",".join(map(plain, astuple(self)))
        return numbers if kind == "fixed" else f"{kind}:{numbers}"


@dataclass(frozen=True)
class FixedWait(Waits):
    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)

    def draw(self, count: int, rng: np.random.Generator) -> Floats:  # noqa: ARG002
        return np.full(count, self.seconds)


@dataclass(frozen=True)
class Exponential(Waits):
    mean_s: float

    def __post_init__(self) -> None:
        _check_seconds(self.mean_s)

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return rng.exponential(self.mean_s, size=count)


@dataclass(frozen=True)
class LognormalWait(Waits):
    """Waits longer than `high_s` are set to it."""

    median_s: float
    sigma: float
    high_s: float

    def __post_init__(self) -> None:
        _check_seconds(self.high_s)
        if not (0 < self.median_s <= self.high_s and 0 <= self.sigma <= 10):
            raise ConfigError(
                f"lognormal waits need 0 < median <= maximum and sigma from 0 to 10, got {self.median_s}, {self.sigma}, {self.high_s}."
            )

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        return np.minimum(rng.lognormal(np.log(self.median_s), self.sigma, size=count), self.high_s)


_KINDS: dict[str, Callable[..., Waits]] = {
    "fixed": FixedWait,
    "exponential": Exponential,
    "lognormal": LognormalWait,
}


def parse_waits(text: str) -> Waits:
    """Waits from their written form: FORMS. Raises ConfigError for anything else."""
    kind, _, numbers = text.partition(":") if ":" in text else ("fixed", "", text)
    if kind not in _KINDS:
        raise ConfigError(f"the waits {text!r} have an unknown kind {kind!r}; write {FORMS}.{nearest(kind, _KINDS)}")
    try:
        return _KINDS[kind](*map(float, numbers.split(",")))
    except (ValueError, TypeError):
        raise ConfigError(f"the waits {text!r} cannot be read; write {FORMS}.") from None


def _check_seconds(seconds: float) -> None:
    if not 0 <= seconds <= MAX_SECONDS:
        raise ConfigError(f"a wait must be from 0 to {MAX_SECONDS:.0e} s, got {seconds}.")
