"""When requests arrive: a class an arrival process, that of `vllm bench serve` the first, and its line in a table."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import astuple, dataclass, fields
from functools import partial

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

    def gaps(self, count: int, rng: Random) -> Floats:
        """So many gaps of 1 s in the mean; a process that rescales its times has others, which nothing rescales."""
        return np.diff(self.times(count, 1.0, rng), prepend=0.0)

    def parts(self, num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:
        """The same, so many at once; a process that knows only how to draw them all does that first."""
        times = self.times(num_requests, rate_rps, rng)
        yield from (times[first : first + at_once] for first in range(0, num_requests, at_once))

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
        return _rescaled(self._gaps(num_requests, rate_rps, rng), num_requests / rate_rps)

    def parts(self, num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:
        return _rescaled_in_parts(partial(self._gaps, rate_rps=rate_rps), num_requests, rate_rps, rng, at_once)

    def gaps(self, count: int, rng: Random) -> Floats:
        return self._gaps(count, 1.0, rng)

    def _gaps(self, count: int, rate_rps: float, rng: Random) -> Floats:
        return rng.gamma(shape=self.burstiness, scale=1 / (rate_rps * self.burstiness), size=count)


@dataclass(frozen=True)
class Poisson(Arrivals):
    """Gamma gaps of burstiness 1."""

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:
        return POISSON.times(num_requests, rate_rps, rng)

    def gaps(self, count: int, rng: Random) -> Floats:
        return POISSON.gaps(count, rng)

    def parts(self, num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:
        return POISSON.parts(num_requests, rate_rps, rng, at_once)


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

    def parts(self, num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:
        return _rescaled_in_parts(self._gaps, num_requests, rate_rps, rng, at_once)

    def gaps(self, count: int, rng: Random) -> Floats:
        return self._gaps(count, rng) / math.gamma(1 + 1 / self.shape)

    def _gaps(self, count: int, rng: Random) -> Floats:
        return rng.weibull(self.shape, size=count)


@dataclass(frozen=True)
class Constant(Arrivals):
    """All gaps are the same."""

    def times(self, num_requests: int, rate_rps: float, rng: Random) -> Floats:  # noqa: ARG002 - nothing is drawn
        return np.arange(1, num_requests + 1) / rate_rps

    def parts(self, num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:  # noqa: ARG002
        for first in range(0, num_requests, at_once):
            yield np.arange(first + 1, min(first + at_once, num_requests) + 1) / rate_rps


POISSON = Gamma()
ARRIVALS: dict[str, type[Arrivals]] = {"gamma": Gamma, "poisson": Poisson, "weibull": Weibull, "constant": Constant}
FORMS = listed([":".join([name, *(option.name for option in fields(kind))]) for name, kind in ARRIVALS.items()], "or")


def _rescaled(gaps: Floats, last_s: float) -> Floats:
    """Times with these gaps, in proportion, of which the last is `last_s`."""
    times = np.cumsum(gaps)
    return times * (last_s / times[-1]) if times[-1] > 0 else times


def _rescaled_in_parts(
    gaps: Callable[..., Floats], num_requests: int, rate_rps: float, rng: np.random.Generator, at_once: int
) -> Iterator[Floats]:
    """The same to the bit, so many at once. What the last would be is found by drawing all gaps once before."""
    last_s = 0.0
    for times in _times_in_parts(gaps, num_requests, deepcopy(rng), at_once):
        last_s = float(times[-1])
    stretch = num_requests / rate_rps / last_s if last_s > 0 else 1.0
    for times in _times_in_parts(gaps, num_requests, rng, at_once):
        yield times * stretch


def _times_in_parts(
    gaps: Callable[..., Floats], num_requests: int, rng: np.random.Generator, at_once: int
) -> Iterator[Floats]:
    """When requests with these gaps come, before they are rescaled."""
    begin_s = 0.0
    for first in range(0, num_requests, at_once):
        some = gaps(min(at_once, num_requests - first), rng=rng)
        times = np.cumsum(np.concatenate(([begin_s], some)))[1:]
        begin_s = float(times[-1])
        yield times


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
