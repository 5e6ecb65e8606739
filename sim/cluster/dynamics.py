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
    """`autoscale` are policies by the number of the pool; `start_ups` are one for all pools, or one for each.

    `given` are the sections that are not left to their defaults, as they were written.
    """

    autoscale: Mapping[int, AutoscalerOptions] = field(default_factory=dict)
    start_ups: tuple[StartUp, ...] = (StartUp(),)
    faults: tuple[Fault, ...] = ()
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    given: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """From sections of a fleet file. Raises ConfigError that names the section, the option and its rule."""
        sections = dict(given)
        policies, starts = _by_pool(sections.get("autoscale")), _by_pool(sections.get("start_up"))
        starts = starts * len(policies) if len(starts) == 1 else starts
        policies = policies + [None] * (len(starts) - len(policies))
        apart = [_apart(policy, start) for policy, start in zip(policies, starts, strict=True)]
        return cls(
            {pool: autoscaler_options(policy) for pool, (policy, _) in enumerate(apart) if policy is not None},
            tuple(_start_up(start) for _, start in apart),
            parse_faults(sections.get("faults", ())),
            checked("admission", AdmissionOptions, _mapping("admission", sections.get("admission", {}))),
            checked("recovery", RecoveryOptions, _mapping("recovery", sections.get("recovery", {}))),
            sections,
        )

    def start_up_of(self, pool: int) -> StartUp:
        """How a replica of a pool starts."""
        return self.start_ups[pool if len(self.start_ups) > 1 else 0]

    def num_first(self, pool: int, num_replicas: int) -> int:
        """Replicas of a pool at the beginning, where so many are given."""
        return self.autoscale[pool].clipped(num_replicas) if pool in self.autoscale else num_replicas

    def num_places(self, pool: int, num_replicas: int) -> int:
        """As many as the pool may have at a time."""
        return self.autoscale[pool].max if pool in self.autoscale else num_replicas

    def check(self, pools: Sequence[int]) -> Self:
        """Returns itself if it fits pools of so many replicas."""
        policies = (self.given or {}).get("autoscale")
        if len(pools) > 1 and policies is not None and not isinstance(policies, list):
            raise ConfigError(
                f"autoscale works on a fleet of one pool, got {len(pools)}; let it stand in the pools that it is for, or leave it out."
            )
        for pool, policy in self.autoscale.items():
            if pools[pool] > policy.max:
                raise ConfigError(
                    f"autoscale: max must be at least the {pools[pool]} replicas of the pool, got {policy.max}."
                )
        most = sum(self.num_places(pool, count) for pool, count in enumerate(pools))
        for place, fault in enumerate(self.faults):
            number = getattr(fault, "replica", 0)
            if number >= most:
                raise ConfigError(f"faults[{place}]: replica must be from 0 to {most - 1}, got {number}.")
        return self


def _mapping(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a mapping of options, got {given!r}.")
    return given


def _by_pool(given: Any) -> list[Any]:
    """A section of each pool, or the one of all."""
    return given if isinstance(given, list) else [given]


def _start_up(given: Any) -> StartUp:
    """From options, or a number of seconds; None is the default."""
    options = {"seconds": given} if isinstance(given, int | float) else given
    found: StartUp = checked("start_up", StartUp, _mapping("start_up", options or {}))
    return found


def _apart(policy: Any, start_up: Any) -> tuple[Any, Any]:
    """`start_up_s` of an autoscaler stands for `start_up`."""
    if policy is None or isinstance(policy, str):
        return policy, start_up
    options = dict(_mapping("autoscale", policy))
    start_up_s = options.pop("start_up_s", None)
    if start_up_s is None:
        return options, start_up
    if start_up is not None:
        raise ConfigError("autoscale.start_up_s and start_up both say how long a start takes; leave one of them out.")
    return options, start_up_s
