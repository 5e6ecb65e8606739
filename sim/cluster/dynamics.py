"""What changes while a fleet serves: autoscaling, faults, and what the gateway lets in and tries again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from sim.cluster.admission import AdmissionOptions, RecoveryOptions
from sim.cluster.autoscaling.autoscaler import AutoscalerOptions
from sim.cluster.autoscaling.table import autoscaler_options
from sim.cluster.cold_start import StartUp
from sim.cluster.faults import Fault, parse_faults
from sim.cluster.options import checked
from sim.errors import ConfigError

KEYS = ("autoscale", "start_up", "faults", "recovery", "admission")


@dataclass(frozen=True)
class Dynamics:
    """`given` are the sections that are not left to their defaults, as they were written."""

    autoscale: AutoscalerOptions | None = None
    start_up: StartUp = field(default_factory=StartUp)
    faults: tuple[Fault, ...] = ()
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    given: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """From sections of a fleet file. Raises ConfigError that names the section, the option and its rule."""
        sections = dict(given)
        autoscale, start_up = sections.get("autoscale"), sections.get("start_up", {})
        if autoscale is not None and not isinstance(autoscale, str):
            autoscale, start_up = _apart(_mapping("autoscale", autoscale), start_up)
        if isinstance(start_up, int | float):
            start_up = {"seconds": start_up}
        return cls(
            autoscaler_options(autoscale) if autoscale is not None else None,
            checked("start_up", StartUp, _mapping("start_up", start_up)),
            parse_faults(sections.get("faults", ())),
            checked("admission", AdmissionOptions, _mapping("admission", sections.get("admission", {}))),
            checked("recovery", RecoveryOptions, _mapping("recovery", sections.get("recovery", {}))),
            sections,
        )

    @property
    def window_s(self) -> float:
        """How far back the autoscaler looks."""
        return self.autoscale.autoscaler().window_s if self.autoscale else 0.0

    def check(self, pools: Sequence[int]) -> Self:
        """Returns itself if it fits pools of so many replicas."""
        if self.autoscale is not None and len(pools) > 1:
            raise ConfigError(
                f"autoscale works on a fleet of one pool, got {len(pools)}; leave autoscale or pools out."
            )
        if self.autoscale is not None and sum(pools) > self.autoscale.max:
            raise ConfigError(
                f"autoscale: max must be at least the {sum(pools)} replicas of the pool, got {self.autoscale.max}."
            )
        most = max(sum(pools), self.autoscale.max if self.autoscale else 0)
        for place, fault in enumerate(self.faults):
            number = getattr(fault, "replica", 0)
            if number >= most:
                raise ConfigError(f"faults[{place}]: replica must be from 0 to {most - 1}, got {number}.")
        return self


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a mapping of options, got {given!r}.")
    return given


def _apart(autoscale: Mapping[str, Any], start_up: Any) -> tuple[Mapping[str, Any], Any]:
    """`start_up_s` of an autoscaler stands for `start_up`."""
    if "start_up_s" not in autoscale:
        return autoscale, start_up
    if start_up:
        raise ConfigError("autoscale.start_up_s and start_up both say how long a start takes; leave one of them out.")
    return {key: value for key, value in autoscale.items() if key != "start_up_s"}, autoscale["start_up_s"]
