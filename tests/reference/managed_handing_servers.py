"""A naive fleet that changes, whose pools hand KV over and have servers of several engines, in lock step or not.

A server begins, drains and is lost as one; its engines hand over by themselves, each under its number in the fleet.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from sim.engine.config import SchedulerConfig
from tests.reference.disaggregation import ServerKind
from tests.reference.handing_ranks import HandingRanks
from tests.reference.managed import Spot
from tests.reference.managed_pools import ManagedPools
from tests.reference.managed_servers import Servers, ServerSpots
from tests.reference.recorder import Recorder
from tests.reference.request import Request

ALONE = ServerKind(1, 1)


class HandingServers(ServerSpots, ManagedPools):
    """Of a pool without servers each engine is one by itself."""

    @cached_property
    def kinds(self) -> Sequence[Servers]:
        found = (pool.server or ALONE for pool in self.pools)
        return [
            Servers(kind.num_engines, kind.per_address, kind.balancer, dict(kind.rules) if kind.rules else None)
            for kind in found
        ]

    def config_of(self, pool: int) -> SchedulerConfig:
        return self.pools[pool].config

    def made(self, spot: Spot, start: Callable[[Any], None]) -> tuple[Sequence[Any], HandingRanks | None]:
        rules, numbers = self.kinds[spot.pool].rules, self.engine_numbers(spot)
        if rules is None:
            engines = [self.alone(spot, Recorder(), number) for number in numbers]
            for engine in engines:
                start(engine)
            return engines, None
        pool = self.pools[spot.pool]

        def finished(request: Request) -> None:
            self.finished(spot, request)

        modes = pool.modes(self.transfers, self.rules.idle_sleep_s)
        ranks = HandingRanks(
            self.env, pool.config, spot.step_time, modes, len(numbers), finished, first=numbers.start, **rules
        )
        for rank, number in zip(ranks.ranks, numbers, strict=True):
            self.connect(rank, pool, number)
        start(ranks)
        return ranks.ranks, ranks

    @property
    def num_waves(self) -> list[int]:
        """Of each spot whose ranks step together, whoever was there in turn."""
        return [
            sum(stay.ranks.num_waves for stay in self.stays.get(spot, []))
            for spot in self.spots
            if self.kinds[spot.pool].rules is not None
        ]
