"""A fleet as a YAML file: pools of replicas, and the router before them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from sim.errors import ConfigError
from sim.specs.kv_transfer import LoadFailurePolicy
from sim.specs.strict_yaml import NotNegative, Strict, checked, read_yaml

MOST_POOLS = 100
MOST_REPLICAS = 512


class PoolBlock(Strict):
    """Equal replicas. What is not said is the command line's: its GPU, and each of its engine arguments.

    `role` prefill computes prompts for pools of role decode; both serves whole requests. `engine` has vLLM's arguments,
    written with underscores; null takes one back to vLLM's default. `autoscale` is a policy of its own, `start_up` how its replicas
    start, if not as those of other pools.
    """

    name: str | None = None
    role: Literal["both", "prefill", "decode"] = "both"
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    gpu: str | None = None
    engine: Annotated[dict[str, Any], Field(default_factory=dict)]
    autoscale: str | dict[str, Any] | None = None
    start_up: float | dict[str, Any] | None = None

    @field_validator("autoscale", mode="before")
    @classmethod
    def _is_policy(cls, given: object) -> object:
        return _policy(given)

    @field_validator("start_up", mode="before")
    @classmethod
    def _is_start_up(cls, given: object) -> object:
        return _start_up(given)


class TransferBlock(Strict):
    """What it costs to move KV between pools: `bandwidth_gb_s` of each GPU's card, each way, and a transfer's times.

    `kv_lease_duration` (seconds) and `kv_load_failure_policy` are vLLM's own; left out, the first is that of its version.
    """

    bandwidth_gb_s: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None
    latency_ms: Annotated[NotNegative, Field(le=60_000)] = 1.0
    descriptor_us: Annotated[NotNegative, Field(le=1e6)] | None = None
    handshake_s: Annotated[NotNegative, Field(le=600)] = 0.0
    kv_lease_duration: Annotated[float, Field(ge=1, le=1e6)] | None = None
    kv_load_failure_policy: LoadFailurePolicy = "fail"


class FleetFile(Strict):
    """Pools in order, and a router: a name, with options behind a colon, or `{policy: llm_d, queue: 2}`.

    `changes` are the other sections, of what changes while the fleet serves.
    """

    pools: Annotated[list[PoolBlock], Field(default_factory=lambda: [PoolBlock()], min_length=1, max_length=MOST_POOLS)]
    router: str | dict[str, Any] | None = None
    prefill_router: str | dict[str, Any] | None = None
    decider: str | dict[str, Any] | None = None
    transfer: TransferBlock | None = None
    kv_store: str | dict[str, Any] | None = None
    kv_pull: str | dict[str, Any] | None = None
    autoscale: str | dict[str, Any] | None = None
    start_up: float | dict[str, Any] | None = None
    faults: list[Any] | None = None
    recovery: dict[str, Any] | None = None
    admission: dict[str, Any] | None = None

    @property
    def shares_kv(self) -> bool:
        """Whether replicas that serve whole requests share KV."""
        return self.kv_store is not None or self.kv_pull is not None

    def sharing_kv(
        self, kv_store: str | Mapping[str, Any] | None = None, kv_pull: str | Mapping[str, Any] | None = None
    ) -> "FleetFile":
        """The same with what is asked for beside it. Raises ConfigError where it says itself how KV is shared."""
        asked = sharing_sections(kv_store, kv_pull)
        if asked and self.shares_kv:
            raise ConfigError(
                f"{next(iter(asked))} is asked for, and the fleet file says how KV is shared; leave one of them out."
            )
        return self.model_copy(update=asked)

    @property
    def changes(self) -> dict[str, Any]:
        """The sections that are given, by name; `autoscale` and `start_up` are lists where pools have their own."""
        names = ("autoscale", "start_up", "faults", "recovery", "admission")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if any(pool.autoscale for pool in self.pools):
            given["autoscale"] = [pool.autoscale for pool in self.pools]
        if any(pool.start_up is not None for pool in self.pools):
            given["start_up"] = [self.start_up if pool.start_up is None else pool.start_up for pool in self.pools]
        return given

    @property
    def is_scaled(self) -> bool:
        """Whether a policy decides how many replicas any pool has."""
        return "autoscale" in self.changes

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, pools: list[PoolBlock]) -> list[PoolBlock]:
        if len(set(_names(pools))) < len(pools):
            raise ValueError("must have different names")
        return pools

    @field_validator("router", "prefill_router", "decider", "autoscale", mode="before")
    @classmethod
    def _is_policy(cls, given: object) -> object:
        return _policy(given)

    @field_validator("autoscale")
    @classmethod
    def _is_the_only_one(cls, given: object, others: ValidationInfo) -> object:
        if given is not None and any(pool.autoscale for pool in others.data.get("pools", ())):
            raise ValueError("must be left out where pools have their own")
        return given

    @field_validator("kv_store", "kv_pull", mode="before")
    @classmethod
    def _are_options(cls, given: object) -> object:
        if not isinstance(given, str | dict | None):
            raise ValueError("must be options, such as {capacity_gib: 64}")  # noqa: TRY004 - pydantic's kind
        return given

    @field_validator("start_up", mode="before")
    @classmethod
    def _is_start_up(cls, given: object) -> object:
        return _start_up(given)

    @property
    def names(self) -> list[str]:
        """Of the pools: as given, or their number."""
        return _names(self.pools)

    def to_json(self) -> dict[str, Any]:
        """What was given."""
        return self.model_dump(exclude_unset=True)


def sharing_sections(
    kv_store: str | Mapping[str, Any] | None, kv_pull: str | Mapping[str, Any] | None
) -> dict[str, str | Mapping[str, Any]]:
    """Those of the two that are given, by name."""
    return {name: given for name, given in (("kv_store", kv_store), ("kv_pull", kv_pull)) if given is not None}


def _policy(given: object) -> object:
    if not isinstance(given, str | dict | None):
        raise ValueError("must be a name or a mapping with `policy`")  # noqa: TRY004 - pydantic's kind
    return given


def _start_up(given: object) -> object:
    if not isinstance(given, int | float | dict | None):
        raise ValueError("must be seconds or a mapping")  # noqa: TRY004 - pydantic's kind
    return given


def _names(pools: Sequence[PoolBlock]) -> list[str]:
    return [pool.name or f"pool {number}" for number, pool in enumerate(pools)]


FleetLike = str | Path | Mapping[str, Any] | FleetFile
"""The path of a YAML file, or its content."""


def read_fleet(fleet: FleetLike) -> FleetFile:
    """The fleet in a file or a mapping. Raises SimError naming file, field and rule."""
    if isinstance(fleet, FleetFile):
        return fleet
    if isinstance(fleet, Mapping):
        return checked(fleet, FleetFile, file_name(fleet), ConfigError)
    return read_yaml(Path(fleet), FleetFile)


def file_name(fleet: FleetLike) -> str:
    """What errors call it."""
    return str(fleet) if isinstance(fleet, str | Path) else "fleet"
