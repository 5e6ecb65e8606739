"""The space that is searched over a fleet's pools if none is given: what the file leaves open and pools differ in."""

from collections.abc import Iterator
from typing import Any

from sim.deployment import as_gpu
from sim.errors import ConfigError
from sim.report.search import GIVEN
from sim.search.analytic.default_space import (
    BATCHED_TOKENS,
    LAID_OUT_REPLICAS,
    NUM_SEQS,
    check_gpus,
    data_parallel_sizes,
    pipeline_parallel_sizes,
    replica_counts,
    tensor_parallel_sizes,
)
from sim.search.blueprint import RANKS, REPLICAS, ROUTER, SERVED_RANKS, STAGES
from sim.search.evaluate import Scenario
from sim.search.space import Space
from sim.specs.fleet_file import PoolBlock

ROUTERS = ("least_loaded", "round_robin", "llm_d")
DECIDERS = ("always", *(f"prefix_based:non_cached_tokens={tokens}" for tokens in (16, 512, 2048)))


def default_fleet_space(scenario: Scenario, *, gpus: int | None = None) -> Space:
    """Batch sizes of each pool, the router and the decider, and ways to share out `gpus` GPUs over the pools.

    What stands in the file, or was given for all, is not searched, but for the numbers of replicas under `gpus`. Raises
    ConfigError for more GPUs than are laid out, and for `gpus` where a policy decides on replicas.
    """
    asked, made = scenario.fleet, scenario.blueprint
    assert asked is not None, "a fleet's space is over its file"
    if gpus is not None and asked.is_scaled:
        raise ConfigError(
            "--gpus shares out replicas, and on that the fleet's autoscale decides; leave one of them out."
        )
    knobs: dict[str, tuple[Any, ...]] = {}
    fixed: dict[str, str] = {}
    for prefix, block in made.pools.items():
        for name, values in _of_pool(scenario, block, gpus):
            knobs[prefix + name] = values
            if name in block.engine or name in scenario.base.given:
                fixed[prefix + name] = GIVEN
    knobs |= {ROUTER: ROUTERS} | ({"decider": DECIDERS} if made.has_roles else {})
    fixed |= {name: GIVEN for name in knobs if getattr(asked, name, None) is not None}
    if scenario.router is not None:
        fixed[ROUTER] = GIVEN
    return Space(knobs, gpus=gpus, over=made).without(fixed)


def _of_pool(scenario: Scenario, block: PoolBlock, gpus: int | None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Seats where requests are answered, tokens where prompts are computed."""
    if gpus is not None:
        ranks = tensor_parallel_sizes(gpus, scenario.model.num_attention_heads)
        check_gpus(gpus, ranks[-1])
        yield REPLICAS, replica_counts(min(gpus, LAID_OUT_REPLICAS, len(scenario.trace)))
        yield RANKS, ranks
        stages = pipeline_parallel_sizes(gpus, scenario.model, as_gpu(block.gpu or scenario.gpu))
        if block.role == "both" and len(stages) > 1:
            yield STAGES, stages
        if scenario.model.has_experts and scenario.fleet and not scenario.fleet.changes:
            yield SERVED_RANKS, data_parallel_sizes(gpus)
            yield "enable_expert_parallel", (None, True)
    if block.role != "prefill":
        yield "max_num_seqs", (None, *NUM_SEQS)
    if block.role != "decode":
        yield "max_num_batched_tokens", (None, *BATCHED_TOKENS)
