"""Flags of one run, which `simulate` replays and `explain` explains: its rate, its replicas, its users, its seed."""

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from sim.cli.client_flags import NumUsers, ThinkTime
from sim.cli.options import Fleet, GivenRouter, KVPull, KVStore, RateScale, Replicas, RequestRate


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """The fields are the flags, and arguments of `sim.simulate`."""

    request_rate: RequestRate = None
    rate_scale: RateScale = 1.0
    replicas: Replicas = None
    router: GivenRouter = None
    fleet: Fleet = None
    kv_store: KVStore = None
    kv_pull: KVPull = None
    users: NumUsers = None
    think_time: ThinkTime = None
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of what a router draws, of think times, and of a load of inference-perf.")
    ] = 0

    def arguments(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}
