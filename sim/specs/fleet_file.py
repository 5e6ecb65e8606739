"""A fleet as a YAML file: pools of replicas, and the router before them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from sim.errors import ConfigError
from sim.specs.strict_yaml import NotNegative, Strict, checked, read_yaml

MOST_POOLS = 100
MOST_REPLICAS = 512


class PoolBlock(Strict):
    """Equal replicas. What is not said is the command line's: its GPU, and each of its engine arguments.

    `role` prefill computes prompts for pools of role decode; both serves whole requests. `engine` has vLLM's arguments,
    written with underscores; null takes one back to vLLM's default.
    """

    name: str | None = None
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    gpu: str | None = None
    engine: Annotated[dict[str, Any], Field(default_factory=dict)]


class TransferBlock(Strict):
    """What it costs to move KV between pools: `bandwidth_gb_s` of each GPU's card, each way, and a transfer's times."""

    bandwidth_gb_s: Annotated[float, Field(gt=0, le=1e6)] | None = None
    latency_ms: NotNegative = 1.0
    descriptor_us: NotNegative | None = None
    handshake_s: NotNegative = 0.0


class FleetFile(Strict):
    """Pools in order, and a router: a name, with options behind a colon, or `{policy: llm_d, queue: 2}`.

    `changes` are the other sections, of what changes while the fleet serves.
    """

    pools: Annotated[list[PoolBlock], Field(default_factory=lambda: [PoolBlock()], min_length=1, max_length=MOST_POOLS)]
    router: str | dict[str, Any] | None = None
    prefill_router: str | dict[str, Any] | None = None
    decider: str | dict[str, Any] | None = None
    transfer: TransferBlock | None = None
    autoscale: str | dict[str, Any] | None = None
    start_up: float | dict[str, Any] | None = None
    faults: list[Any] | None = None
    recovery: dict[str, Any] | None = None
    admission: dict[str, Any] | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """The sections that are given, by name."""
        names = ("autoscale", "start_up", "faults", "recovery", "admission")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, pools: list[PoolBlock]) -> list[PoolBlock]:
        names = [pool.name for pool in pools if pool.name]
        if len(set(names)) < len(names):
            raise ValueError("must have different names")
        return pools

    @property
    def names(self) -> list[str]:
        """Of the pools: as given, or their number."""
        return [pool.name or f"pool {number}" for number, pool in enumerate(self.pools)]

    def to_json(self) -> dict[str, Any]:
        """What was given."""
        return self.model_dump(exclude_unset=True)


FleetLike = str | Path | Mapping[str, Any]
"""The path of a YAML file, or its content."""


def read_fleet(fleet: FleetLike) -> FleetFile:
    """The fleet in a file or a mapping. Raises SimError naming file, field and rule."""
    if isinstance(fleet, Mapping):
        return checked(fleet, FleetFile, file_name(fleet), ConfigError)
    return read_yaml(Path(fleet), FleetFile)


def file_name(fleet: FleetLike) -> str:
    """What errors call it."""
    return "fleet" if isinstance(fleet, Mapping) else str(fleet)
