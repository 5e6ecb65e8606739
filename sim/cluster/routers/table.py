"""Every router by its name."""

from collections.abc import Mapping
from typing import Any, cast

from sim.cluster.routers.least_loaded import LeastLoadedOptions, PromptLengthOptions
from sim.cluster.routers.options import checked, named
from sim.cluster.routers.power_of_two import PowerOfTwoOptions
from sim.cluster.routers.router import RouterOptions
from sim.cluster.routers.sessions import ConsistentHashOptions, ProductionStackSessionOptions
from sim.cluster.routers.simple import RandomOptions, RoundRobinOptions
from sim.cluster.routers.vllm_dp import VllmDataParallelOptions
from sim.errors import ConfigError, nearest

ROUTERS: dict[str, type[RouterOptions]] = {
    "random": RandomOptions,
    "round_robin": RoundRobinOptions,
    "least_loaded": LeastLoadedOptions,
    "power_of_two": PowerOfTwoOptions,
    "prompt_length": PromptLengthOptions,
    "consistent_hash": ConsistentHashOptions,
    "production_stack_session": ProductionStackSessionOptions,
    "vllm_dp": VllmDataParallelOptions,
}


def router_options(given: str | Mapping[str, Any]) -> RouterOptions:
    """The router that was asked for, by name or with options; ConfigError for an unknown one or a broken rule."""
    name, options = named(given)
    if name not in ROUTERS:
        raise ConfigError(f"router must be one of {', '.join(ROUTERS)}, got {name!r}.{nearest(name, ROUTERS)}")
    return cast("RouterOptions", checked(name, ROUTERS[name], options))
