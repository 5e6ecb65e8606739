"""What goes wrong with replicas and when: losses and slow nodes, scripted or drawn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.cluster.options import checked, option
from sim.errors import ConfigError


class Outage(NamedTuple):
    """A replica is lost `after_s` from the end of the outage before, or from the beginning; its machine is back `for_s` later."""

    after_s: float
    for_s: float


@dataclass(frozen=True)
class ScriptedFault:
    """A replica is lost, or its steps take `slow` times as long, from `at_s` on, for `for_s`."""

    at_s: float = option(None, kind=float, at_least=0)
    replica: int = option(None, kind=int, at_least=0)
    for_s: float = option(0.0, at_least=0)
    slow: float | None = option(None, kind=float, at_least=1)

    def outages(self, number: int, seed: int, place: int) -> Iterator[Outage]:  # noqa: ARG002 - as those that are drawn
        """Those of the replica of that number."""
        if number == self.replica:
            yield Outage(self.at_s, self.for_s)


@dataclass(frozen=True)
class DrawnFault:
    """Each replica fails after exponential times of mean `mtbf_s`, and its machine is back after exponential times of mean `mttr_s`."""

    mtbf_s: float = option(None, kind=float, at_least=1e-3)
    mttr_s: float = option(None, kind=float, at_least=0)
    slow: float | None = option(None, kind=float, at_least=1)

    def outages(self, number: int, seed: int, place: int) -> Iterator[Outage]:
        """Those of the replica of that number, without end; `place` is that of the fault in the list of all."""
        rng = np.random.default_rng([seed, place, number])
        while True:
            yield Outage(float(rng.exponential(self.mtbf_s)), float(rng.exponential(self.mttr_s)))


Fault = ScriptedFault | DrawnFault
KINDS: tuple[type[Fault], ...] = (ScriptedFault, DrawnFault)


def parse_faults(given: Sequence[Mapping[str, Any]]) -> tuple[Fault, ...]:
    """`[{at_s: 100, replica: 0, for_s: 60}, {mtbf_s: 86400, mttr_s: 600}]`. Raises ConfigError for anything else."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(f"faults must be a list such as [{{at_s: 100, replica: 0, for_s: 60}}], got {given!r}.")
    return tuple(_fault(place, fault) for place, fault in enumerate(given))


def _fault(place: int, given: Mapping[str, Any]) -> Fault:
    what = f"faults[{place}]"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} must be a mapping such as {{at_s: 100, replica: 0, for_s: 60}}, got {given!r}.")
    kind = DrawnFault if {"mtbf_s", "mttr_s"} & set(given) else ScriptedFault
    needed = ("mtbf_s", "mttr_s") if kind is DrawnFault else ("at_s", "replica")
    absent = [name for name in needed if name not in given]
    if absent:
        raise ConfigError(
            f"{what}: {' and '.join(absent)} must be given: a fault has at_s and replica, or mtbf_s and mttr_s."
        )
    found: Fault = checked(what, kind, given)
    return found
