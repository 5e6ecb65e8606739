"""What a fleet is made of: pools of equal replicas, and the router before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sim.cluster.dynamics import Dynamics
from sim.engine.config import SchedulerConfig
from sim.steptime.protocol import StepTimeModel

RouterLike = str | Mapping[str, Any]
"""A router's name, with options behind a colon, or `{policy: llm_d, queue: 2}`."""


class Pool(NamedTuple):
    """Equal replicas: how they schedule, how long their steps take, and how long a new one takes to start."""

    config: SchedulerConfig
    step_time: StepTimeModel
    num_replicas: int = 1
    start_up_s: float = 0.0


@dataclass(frozen=True)
class FleetPlan:
    """Pools in order: replicas are numbered from 0 through all of them. `dynamics` are what changes, if anything does."""

    pools: tuple[Pool, ...]
    router: RouterLike = "least_loaded"
    dynamics: Dynamics | None = None

    @classmethod
    def alike(
        cls,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        num_replicas: int = 1,
        router: RouterLike = "least_loaded",
        *,
        dynamics: Dynamics | None = None,
        start_up_s: float = 0.0,
    ) -> Self:
        """One pool."""
        return cls((Pool(config, step_time, num_replicas, start_up_s),), router, dynamics)

    @property
    def pool_of(self) -> tuple[int, ...]:
        """The number of each replica's pool."""
        return tuple(number for number, pool in enumerate(self.pools) for _ in range(pool.num_replicas))

    @property
    def num_replicas(self) -> int:
        return sum(pool.num_replicas for pool in self.pools)

    @property
    def configs(self) -> tuple[SchedulerConfig, ...]:
        """Of each pool."""
        return tuple(pool.config for pool in self.pools)
