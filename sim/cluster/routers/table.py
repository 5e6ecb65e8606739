"""Every router by its name."""

from collections.abc import Mapping
from typing import Any, cast

from sim.cluster.options import checked, named
from sim.cluster.routers.dynamo import DynamoOptions
from sim.cluster.routers.least_loaded import LeastLoadedOptions, PromptLengthOptions
from sim.cluster.routers.llm_d import LlmDOptimizedBaselineOptions, LlmDOptions, LlmDPreciseOptions
from sim.cluster.routers.power_of_two import PowerOfTwoOptions
from sim.cluster.routers.production_stack_prefix import ProductionStackPrefixOptions
from sim.cluster.routers.router import RouterOptions
from sim.cluster.routers.sessions import ConsistentHashOptions, ProductionStackSessionOptions
from sim.cluster.routers.sglang import SglangCacheAwareOptions
from sim.cluster.routers.simple import RandomOptions, RoundRobinOptions
from sim.cluster.routers.vllm_dp import VllmDataParallelOptions
from sim.errors import check_choice

ROUTERS: dict[str, type[RouterOptions]] = {
    "random": RandomOptions,
    "round_robin": RoundRobinOptions,
    "least_loaded": LeastLoadedOptions,
    "power_of_two": PowerOfTwoOptions,
    "prompt_length": PromptLengthOptions,
    "consistent_hash": ConsistentHashOptions,
    "production_stack_session": ProductionStackSessionOptions,
    "production_stack_prefix": ProductionStackPrefixOptions,
    "sglang_cache_aware": SglangCacheAwareOptions,
    "dynamo": DynamoOptions,
    "llm_d": LlmDOptions,
    "llm_d_precise": LlmDPreciseOptions,
    "llm_d_optimized_baseline": LlmDOptimizedBaselineOptions,
    "vllm_dp": VllmDataParallelOptions,
}


def router_options(given: str | Mapping[str, Any]) -> RouterOptions:
    """The router that was asked for, by name or with options; ConfigError for an unknown one or a broken rule."""
    name, options = named("router", given)
    check_choice("router", name, ROUTERS)
    return cast("RouterOptions", checked(f"router {name}", ROUTERS[name], options))
