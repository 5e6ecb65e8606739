"""Service-level objectives: limits on percentiles of the latencies of `vllm bench serve`."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast, get_args

import numpy as np

from sim.errors import ConfigError, nearest
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.units import MS

Latency = Literal["ttft", "tpot", "itl", "e2el"]
LATENCIES: tuple[str, ...] = get_args(Latency)
_PATTERN = re.compile(
    r"(?P<latency>[a-z0-9]+)_p(?P<percentile>\d{1,3}(?:\.\d{1,9})?)\s*<?=\s*(?P<limit>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)"
)


class Slo(NamedTuple):
    """The `percentile` of a latency must not exceed `limit_s`; a request that is not served is infinitely late."""

    latency: Latency
    percentile: float
    limit_s: float

    def __str__(self) -> str:
        return f"{self.name}={self.limit_ms:g}ms"

    @property
    def limit_ms(self) -> float:
        return self.limit_s / MS

    @property
    def name(self) -> str:
        """As on the command line: ttft_p99."""
        return f"{self.latency}_p{self.percentile:g}"

    @property
    def key(self) -> str:
        """As in the metrics, over the requests that were served: p99_ttft_ms."""
        return f"p{self.percentile:g}_{self.latency}_ms"

    @property
    def judged_key(self) -> str:
        """As in the metrics, over all requests, which is what the limit holds for: slo_ttft_p99_ms."""
        return f"slo_{self.name}_ms"


class SloClass(NamedTuple):
    """A class of clients with its own limits; without any it has those of the run."""

    name: str
    slos: tuple[Slo, ...]


def parse_slo(text: str) -> Slo:
    """`ttft_p99=500ms` or `e2el_p99.9=2s`. Raises ConfigError for anything else."""
    found = _PATTERN.fullmatch(text.strip().lower())
    if not found:
        raise ConfigError(
            f"--slo must look like ttft_p99=500ms: one of {', '.join(LATENCIES)}, a percentile and a limit in ms or s; got {text!r}."
        )
    latency, percentile = found["latency"], float(found["percentile"])
    if latency not in LATENCIES:
        raise ConfigError(
            f"--slo {text}: the latency must be one of {', '.join(LATENCIES)}, got {latency!r}.{nearest(latency, LATENCIES)}"
        )
    if percentile > 100:
        raise ConfigError(f"--slo {text}: a percentile is from 0 to 100, got {percentile:g}.")
    limit_s = float(found["limit"]) * (MS if found["unit"] == "ms" else 1.0)
    if not (limit_s > 0 and is_sane(limit_s)):
        raise ConfigError(f"--slo {text[:40]}: the limit must be above 0, and from {SMALLEST:g} to {LARGEST:g} s.")
    return Slo(cast("Latency", latency), percentile, limit_s)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Each percentile once. Raises ConfigError where one is limited twice."""
    slos = tuple(map(parse_slo, texts))
    names = [slo.name for slo in slos]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--slo limits {name} twice; leave one of them out.")
    return slos


def judged_by_request(slos: Sequence[Slo]) -> tuple[Slo, ...]:
    """The same limits. Raises ConfigError for a limit that cannot be applied to single requests."""
    for slo in slos:
        if slo.latency == "itl":
            raise ConfigError(
                f"--slo {slo}: goodput judges single requests, whose gaps between tokens are not kept; limit tpot instead."
            )
    return tuple(slos)


def exact(slo: Slo) -> str:
    """A limit as text that is read as that very limit."""
    numbers = (slo.percentile, round(slo.limit_ms, 6), slo.limit_s)
    percentile, limit_ms, limit_s = (np.format_float_positional(number, trim="-") for number in numbers)
    limit = f"{limit_ms}ms" if float(limit_ms) * MS == slo.limit_s else f"{limit_s}s"
    return f"{slo.latency}_p{percentile}={limit}"


def limits_json(slos: Iterable[Slo]) -> dict[str, float]:
    """The limits as answers have them: milliseconds by name."""
    return {slo.name: slo.limit_ms for slo in slos}
