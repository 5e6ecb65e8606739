"""When requests arrive: a class an arrival process, that of `vllm bench serve` the first, and its line in a table."""

import math
from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass, fields

import numpy as np

from sim.errors import ConfigError, listed, nearest
from sim.workload.columns import MAX_SECONDS, Floats
from sim.workload.lengths import plain

Random = np.random.Generator | np.random.RandomState  # the latter is what the bench itself draws from
MIN_BURSTINESS = 1e-3  # gamma gaps of a smaller shape underflow to zero
MIN_SHAPE = 0.05  # Weibull gaps of a smaller shape leave nothing between the largest and the rest


@dataclass(frozen=True)
class Arrivals(ABC):
    """An arrival process with its options, a field each, all of them numbers."""

    @abstractmethod
    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:
        """Seconds, ascending, at a finite rate; the first request comes after a gap, the last at about num_requests/rate."""

    def __str__(self) -> str:
        """Its written form."""
        kind = next(name for name, made in ARRIVALS.items() if made is type(self))
        options = ",".join(map(plain, astuple(self)))
        return f"{kind}:{options}" if options else kind


@dataclass(frozen=True)
class Gamma(Arrivals):
    """As `vllm bench serve --request-rate --burstiness` sends: burstiness 1 is Poisson, less is burstier.

    Gaps are Gamma(shape=burstiness, scale=1/(rate x burstiness)), and all times are rescaled so that the last is
    num_requests/rate.
    """

    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not MIN_BURSTINESS <= self.burstiness < math.inf:
            raise ConfigError(
                f"`burstiness` must be finite and at least {MIN_BURSTINESS}, got {self.burstiness}; 1 is Poisson."
            )

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:
        gaps = rng.gamma(shape=self.burstiness, scale=1 / (rate_rps * self.burstiness), size=num_requests)
        return _rescaled(gaps, num_requests / rate_rps)


@dataclass(frozen=True)
class Poisson(Arrivals):
    """Gamma gaps of burstiness 1."""

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:
        return POISSON.times(num_requests, rate_rps, rng)


@dataclass(frozen=True)
class Weibull(Arrivals):
    """Weibull gaps of that shape, rescaled as gamma ones are; shape 1 is Poisson, less is burstier."""

    shape: float = 1.0

    def __post_init__(self) -> None:
        if not MIN_SHAPE <= self.shape < math.inf:
            raise ConfigError(
                f"a Weibull `shape` must be finite and at least {MIN_SHAPE}, got {self.shape}; 1 is Poisson."
            )

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:
        return _rescaled(rng.weibull(self.shape, size=num_requests), num_requests / rate_rps)


@dataclass(frozen=True)
class Constant(Arrivals):
    """All gaps are the same."""

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:  # noqa: ARG002 - nothing is drawn
        return np.arange(1, num_requests + 1) / rate_rps


POISSON = Gamma()
ARRIVALS: dict[str, type[Arrivals]] = {"gamma": Gamma, "poisson": Poisson, "weibull": Weibull, "constant": Constant}
FORMS = listed([":".join([name, *(option.name for option in fields(kind))]) for name, kind in ARRIVALS.items()], "or")


def _rescaled(gaps: Floats, last_s: float) -> Floats:
    """Times with these gaps, in proportion, of which the last is `last_s`."""
    times = np.cumsum(gaps)
    return times * (last_s / times[-1]) if times[-1] > 0 else times


def parse_arrivals(text: str) -> Arrivals:
    """An arrival process from its written form, such as `gamma:0.5`. Raises ConfigError for anything else."""
    name, _, options = text.partition(":")
    if name not in ARRIVALS:
        raise ConfigError(f"arrivals must be {FORMS}, got {text!r}.{nearest(name, ARRIVALS)}")
    try:
        return ARRIVALS[name](*map(float, options.split(",") if options else ()))
    except (ValueError, TypeError):
        raise ConfigError(f"the arrivals {text!r} cannot be read; write {FORMS}.") from None


def arrival_times(arrivals: Arrivals, num_requests: int, rate_rps: float, rng: Random) -> Floats:
    """When requests of that process come, in seconds; at an infinite rate all at 0."""
    return np.zeros(num_requests) if math.isinf(rate_rps) else arrivals.times(num_requests, rate_rps, rng)


def check_rate(num_requests: int, rate_rps: float) -> None:
    """Raises ConfigError for a rate out of range."""
    if not rate_rps > num_requests / MAX_SECONDS:
        raise ConfigError(
            f"`request_rate` must be above 0 and end within {MAX_SECONDS:.0e} s, got {rate_rps}; `inf` sends all at once."
        )
