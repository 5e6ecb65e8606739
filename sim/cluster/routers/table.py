"""Every router by its name."""

from collections.abc import Mapping
from typing import Any

from sim.cluster.options import chosen
from sim.cluster.routers.dynamo import DynamoOptions
from sim.cluster.routers.least_loaded import LeastLoadedOptions, PromptLengthOptions
from sim.cluster.routers.llm_d import LlmDOptimizedBaselineOptions, LlmDOptions, LlmDPreciseOptions
from sim.cluster.routers.power_of_two import PowerOfTwoOptions
from sim.cluster.routers.production_stack_prefix import ProductionStackPrefixOptions
from sim.cluster.routers.router import Fleet, Router, RouterOptions
from sim.cluster.routers.sessions import ConsistentHashOptions, ProductionStackSessionOptions
from sim.cluster.routers.sglang import SglangCacheAwareOptions
from sim.cluster.routers.simple import RandomOptions, RoundRobinOptions, TheOnlyOne
from sim.cluster.routers.vllm_dp import VllmDataParallelOptions

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
    return chosen("router", ROUTERS, given)


def router_for(given: str | Mapping[str, Any], fleet: Fleet, num_candidates: int) -> Router:
    """A fresh router, unless there is nothing to choose from. Raises as `router_options`, and for a fleet that the router cannot serve."""
    options = router_options(given)
    return options.router(fleet) if num_candidates > 1 else TheOnlyOne()
