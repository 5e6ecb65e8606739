"""What candidates are made of: the engine arguments and the pools that were given, with a candidate's values in place of theirs.

Where only engine arguments were given there is one pool, whose knobs bear no name: `max_num_seqs`, `replicas`. Those of a fleet
file's pools do: `decode.max_num_seqs`, `decode.replicas`; an argument without one is that of all pools that do not have their own.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any

from sim import sharing
from sim.cluster.autoscaling.table import autoscaler_options
from sim.cluster.deciders import decider
from sim.cluster.routers.table import router_options
from sim.deployment import DEFAULTS
from sim.errors import ConfigError, nearest
from sim.fleet import DEFAULT_ROUTER, pool_engine
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import MOST_REPLICAS, FleetFile, PoolBlock

Params = Mapping[str, Any]
"""A candidate: values by knob. An engine argument of None is left to vLLM."""

REPLICAS = "replicas"
ROUTER = "router"
AUTOSCALE = "autoscale"
RANKS = "tensor_parallel_size"
STAGES = "pipeline_parallel_size"
SERVED_RANKS = "data_parallel_size"
SHARING = tuple(sharing.CHECKS)
"""Ways to share KV, which no fleet has to have."""
SECTIONS = {
    ROUTER: router_options,
    "prefill_router": router_options,
    "decider": decider,
    AUTOSCALE: autoscaler_options,
    **sharing.CHECKS,
}
"""What a fleet file says beside its pools and can be searched, each with what checks it; a policy also of each pool."""
EXAMPLES = {
    "decider": "prefix_based:non_cached_tokens=512",
    AUTOSCALE: "hpa, or hpa:target=5,max=4, or null",
    "kv_store": "capacity_gib=64, or null",
    "kv_pull": "kv_recompute_threshold=2048, or null",
}
HANDING_OVER = ("prefill_router", "decider", "transfer")  # sections that only pools with roles need
DRAFTS = "num_speculative_tokens"
"""A knob of all pools that have a speculative_config: the drafts a step in it, 0 for none."""
NOT_SEARCHED = ("speculative_config",)  # DRAFTS of it are
ARGUMENTS = tuple(entry.name for entry in fields(EngineConfig) if entry.name not in NOT_SEARCHED)
OF_ANSWERS = ("quantization", "kv_cache_dtype")
"""Knobs that change what the model answers, which no replay sees: searched where that is asked for only."""


@dataclass(frozen=True)
class Blueprint:
    """`engine` are the arguments for all, `router` is the one that was asked for beside the `fleet`, if there is one.

    `kv_store` and `kv_pull` are for replicas without a fleet file, which says itself how KV is shared.
    """

    engine: EngineConfig = DEFAULTS
    router: str | None = None
    fleet: FleetFile | None = None
    kv_store: sharing.OptionsLike | None = None
    kv_pull: sharing.OptionsLike | None = None

    @cached_property
    def pools(self) -> Mapping[str, PoolBlock]:
        """Each under what stands before the names of its knobs."""
        if self.fleet is None:
            return {"": PoolBlock(engine={})}
        return {f"{name}.": block for name, block in zip(self.fleet.names, self.fleet.pools, strict=True)}

    @property
    def has_roles(self) -> bool:
        return any(block.role != "both" for block in self.pools.values())

    def is_layout(self, knob: str) -> bool:
        """Whether the knob decides on a number of GPUs."""
        sizes = {prefix + name for prefix in self.pools for name in (REPLICAS, RANKS, STAGES, SERVED_RANKS)}
        return knob in {*sizes, RANKS, STAGES, SERVED_RANKS}

    def replicas_of(self, prefix: str, params: Params) -> int:
        return int(params.get(prefix + REPLICAS, self.pools[prefix].replicas))

    def num_replicas(self, params: Params) -> int:
        return sum(self.replicas_of(prefix, params) for prefix in self.pools)

    def num_gpus(self, params: Params) -> int:
        """Those of all replicas of all pools."""
        return sum(self.replicas_of(prefix, params) * self._gpus_each(prefix, params) for prefix in self.pools)

    def _gpus_each(self, prefix: str, params: Params) -> int:
        """Of a replica: the ranks of each of its stages, for each of the engines that it serves with."""
        sizes = (RANKS, STAGES, SERVED_RANKS)
        return prod(self._size(name, prefix, params) for name in sizes)

    def _size(self, name: str, prefix: str, params: Params) -> int:
        """By the first that says it: the pool's knob, the pool, the knob for all, the arguments for all."""
        said = (params, prefix + name), (self.pools[prefix].engine, name), (params, name)
        size = next((where[knob] for where, knob in said if knob in where), getattr(self.engine, name))
        return int(size or 1)

    def num_flags(self, params: Params) -> int:
        """Flags of the `vllm serve` lines of all pools, and what they share; none where values exclude each other, so that there are no lines."""
        with suppress(ConfigError):
            return sum(len(engine.given) for engine in self.engines(params)) + len(self.sharing_of(params))
        return 0

    def engines(self, params: Params) -> list[EngineConfig]:
        """The arguments of each pool that has replicas. Raises ConfigError where values exclude each other."""
        engine = self.engine_for_all(params)
        if self.fleet is None:
            return [engine]
        return [pool_engine(engine, block) for block in self.fleet_file(params).pools]

    def engine_for_all(self, params: Params) -> EngineConfig:
        """The arguments of pools that do not have their own."""
        return engine_config(self.engine, params)

    def router_of(self, params: Params) -> str:
        """That of the candidate, or of all, where there is no fleet file."""
        return str(params.get(ROUTER) or self.router or DEFAULT_ROUTER)

    def sharing_of(self, params: Params) -> dict[str, sharing.OptionsLike]:
        """How replicas of the candidate share KV, if they do."""
        said = self if self.fleet is None else self.fleet
        asked = {name: params.get(name, getattr(said, name)) for name in SHARING}
        return {name: given for name, given in asked.items() if given is not None}

    def fleet_file(self, params: Params) -> FleetFile:
        """The fleet file of a candidate: pools without replicas are left out, and where no roles remain what only they need.

        Raises ConfigError where no replicas remain.
        """
        assert self.fleet is not None, "there are pools in a fleet file only"
        if not any("." in name or name in SECTIONS for name in params):
            return self.fleet
        pools = [self._block(prefix, params) for prefix in self.pools if self.replicas_of(prefix, params)]
        if not pools:
            raise ConfigError("no pool has replicas.")
        changes: dict[str, Any] = {"pools": pools} | {name: params[name] for name in SECTIONS if name in params}
        if self.has_roles and all(block.role == "both" for block in pools):
            changes |= dict.fromkeys(HANDING_OVER)
        return self.fleet.model_copy(update=changes)

    def _block(self, prefix: str, params: Params) -> PoolBlock:
        """A pool as the candidate has it, by its name, which is its number's where it was given none."""
        block = self.pools[prefix]
        own = {name: params[prefix + name] for name in ARGUMENTS if prefix + name in params}
        changes: dict[str, Any] = {"name": prefix[:-1], REPLICAS: self.replicas_of(prefix, params)}
        changes |= {AUTOSCALE: params[prefix + AUTOSCALE]} if prefix + AUTOSCALE in params else {}
        return block.model_copy(update=changes | ({"engine": {**block.engine, **own}} if own else {}))

    def check_knob(self, name: str, values: Sequence[Any]) -> None:
        """Raises ConfigError, naming the knob and the value, unless each value is one that it takes."""
        argument = self._argument(name)
        if not values:
            raise ConfigError(f"the knob {name} must have at least one value, got none.")
        if len({canonical(value) for value in values}) < len(values):
            raise ConfigError(f"the knob {name} must have each value once, got {list(values)!r}.")
        for value in values:
            self._check_value(name, argument, value)

    def _argument(self, name: str) -> str:
        """What the knob is to its pool, or to all. Raises ConfigError where there is no such knob."""
        if self.fleet is None:
            return self._own_argument(name)
        pool, dot, argument = name.rpartition(".")
        if dot:
            return self._pool_argument(pool, argument)
        names = self.fleet.names
        if name == REPLICAS:
            raise ConfigError(
                f"replicas is a knob of each pool: name one, {', '.join(f'{one}.replicas' for one in names)}."
            )
        if name == AUTOSCALE and len(names) > 1:
            raise ConfigError(
                f"autoscale is a knob of each pool: name one, {', '.join(f'{one}.autoscale' for one in names)}."
            )
        if name in HANDING_OVER and name in SECTIONS and not self.has_roles:
            raise ConfigError(f"the knob {name} is for pools of role prefill and decode, and the fleet has none.")
        if name not in (*ARGUMENTS, DRAFTS, *SECTIONS):
            raise ConfigError(
                f"{name!r} is no knob; knobs are POOL.replicas, vLLM's engine arguments, of one pool as POOL.max_num_seqs or of all, "
                f"and {', '.join(SECTIONS)}.{nearest(name, (*ARGUMENTS, *SECTIONS))}"
            )
        return name

    def _pool_argument(self, pool: str, argument: str) -> str:
        assert self.fleet is not None, "only pools of a fleet file have names"
        if pool not in (names := self.fleet.names):
            raise ConfigError(
                f"{pool}.{argument} is no knob: the fleet has no pool {pool!r}, but {', '.join(names)}.{nearest(pool, names)}"
            )
        if argument not in (known := (REPLICAS, AUTOSCALE, *ARGUMENTS)):
            raise ConfigError(
                f"{pool}.{argument} is no knob: a pool has replicas, a policy to autoscale and vLLM's engine arguments.{nearest(argument, known)}"
            )
        if argument == REPLICAS and self._is_scaled(pool):
            raise ConfigError(f"{pool}.replicas: on that the fleet's autoscale decides; leave one of them out.")
        if argument == AUTOSCALE and self.fleet.autoscale is not None:
            raise ConfigError(f"{pool}.autoscale: the file has it for the whole fleet; name the knob autoscale.")
        return argument

    def _is_scaled(self, pool: str) -> bool:
        """Whether the file has a policy for that pool."""
        assert self.fleet is not None, "only pools of a fleet file have names"
        return bool(self.fleet.autoscale or self.pools[f"{pool}."].autoscale)

    def _own_argument(self, name: str) -> str:
        if name not in (known := (*ARGUMENTS, DRAFTS, REPLICAS, ROUTER, *SHARING)):
            where = " There are pools with a fleet only." if "." in name else nearest(name, known)
            raise ConfigError(
                f"{name!r} is no knob; knobs are vLLM's engine arguments, replicas, router, {' and '.join(SHARING)}.{where}"
            )
        return name

    def _check_drafts(self, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{DRAFTS} must be an integer of at least 0, which is none, got {value!r}.")
        if self.engine.speculative_config is None:
            raise ConfigError(f"the knob {DRAFTS} needs a speculative_config, which says how to draft; give one.")

    def _check_value(self, name: str, argument: str, value: Any) -> None:
        if argument == REPLICAS:
            least = 1 if self.fleet is None else 0
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_REPLICAS:
                raise ConfigError(f"{name} must be an integer from {least} to {MOST_REPLICAS}, got {value!r}.")
        elif argument == DRAFTS:
            self._check_drafts(value)
        elif argument in SECTIONS:
            if argument in (AUTOSCALE, *SHARING) and value is None:
                return
            if not isinstance(value, str):
                example = EXAMPLES.get(argument, "llm_d, or llm_d:queue=2")
                raise ConfigError(f"{name} must be text such as {example}, got {value!r}.")
            SECTIONS[argument](value)
        else:
            _check_argument(name, argument, value)


def _check_argument(name: str, argument: str, value: Any) -> None:
    """By itself: a candidate in which values exclude each other is one that is not feasible."""
    if value is None:
        return
    try:
        EngineConfig.check_argument(argument, value)
    except ConfigError as error:
        raise ConfigError(str(error) if name == argument else f"{name}: {error}") from None


def _with_drafts(engine: EngineConfig, count: int) -> EngineConfig:
    """So many drafts a step where there are any; none for 0."""
    config = engine.speculative_config
    return replace(
        engine, speculative_config=replace(config, num_speculative_tokens=count) if config and count else None
    )


def engine_config(base: EngineConfig, params: Params) -> EngineConfig:
    """The engine arguments of a candidate: from `base` where it does not name them, vLLM's default where its value is None."""
    arguments: dict[str, Any] = {
        name: entry.default if params[name] is None else params[name]
        for name, entry in EngineConfig.__dataclass_fields__.items()
        if name in params
    }
    engine = replace(base, **arguments)
    return _with_drafts(engine, int(params[DRAFTS])) if DRAFTS in params else engine


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values, whatever the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
