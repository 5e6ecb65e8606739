"""What is asked for of KV that replicas share, as the simulation takes it."""

from collections.abc import Callable, Mapping
from typing import Any

from sim.cluster.kv_pulls import PullOptions, PullSharing
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.options import parsed
from sim.cluster.sharing import Sharing
from sim.deployment import Deployment
from sim.errors import ConfigError
from sim.handing_over import drafter_with_kv, network_costs
from sim.memory.cpu_tier import check_states
from sim.memory.transfers import ReplicaKV, copied_bytes_per_s
from sim.memory.what_ifs import alone_with_their_kv
from sim.specs.fleet_file import TransferBlock, sharing_sections

OptionsLike = str | Mapping[str, Any]
"""Options of a store or of pulls: `capacity_gib=64,lookup_ms=2`, or a mapping."""


def store_options(given: OptionsLike) -> StoreOptions:
    """Raises ConfigError that names option and rule."""
    return parsed("kv_store", StoreOptions, given)


def pull_options(given: OptionsLike) -> PullOptions:
    """Raises ConfigError that names option and rule."""
    return parsed("kv_pull", PullOptions, given)


def check_options(kv_store: OptionsLike | None, kv_pull: OptionsLike | None) -> None:
    """Raises ConfigError for an option that is none, and for both."""
    asked = sharing_sections(kv_store, kv_pull)
    if len(asked) > 1:
        raise ConfigError("kv_store and kv_pull are simulated one at a time; leave one of them out.")
    for name, given in asked.items():
        CHECKS[name](given)


def sharing_of(
    kv_store: OptionsLike | None,
    kv_pull: OptionsLike | None,
    deployments: Mapping[str, Deployment],
    transfer: TransferBlock | None,
) -> Sharing | None:
    """By a store or by pulls, if by either, of pools by their names. Raises ConfigError for what is not simulated, and for a store without room."""
    check_options(kv_store, kv_pull)
    gpus = [deployment.gpu for deployment in deployments.values()]
    if kv_store is not None:
        options = store_options(kv_store)
        _check_pools("kv_store", deployments, _as_stored)
        for deployment in deployments.values():
            _check_store(options, deployment)
        return StoreSharing(options, network_costs(transfer, gpus).bytes_per_s)
    if kv_pull is not None:
        pulls = pull_options(kv_pull)
        _check_pools("kv_pull", deployments, _as_pulled)
        policy = (transfer or TransferBlock()).kv_load_failure_policy
        copied = min(copied_bytes_per_s(gpu) for gpu in gpus)
        return PullSharing(pulls, network_costs(transfer, gpus), copied, policy)
    return None


def _check_pools(
    what: str, deployments: Mapping[str, Deployment], facts_of: Callable[[Deployment], Mapping[str, object]]
) -> None:
    """Each by itself, and all beside the first: what is known of KV by `facts_of` has to be alike."""
    (first, first_deployment), *others = deployments.items()
    for deployment in deployments.values():
        _check_engine(what, deployment)
    expected = facts_of(first_deployment)
    for name, deployment in others:
        for fact, value in facts_of(deployment).items():
            if value != expected[fact]:
                raise ConfigError(
                    f"{what} is for pools that keep KV alike, got {fact} {value} in {name} and {expected[fact]} in {first}; give both the"
                    f" same, or leave {what} out."
                )


def _as_pulled(deployment: Deployment) -> Mapping[str, object]:
    """In what the pools of a fleet may differ that vLLM compares as two engines meet (`compute_nixl_compatibility_hash` of
    nixl/metadata.py, 0.33), and the size of blocks, by which requests are looked up.
    """
    engine = deployment.engine
    return {
        "block_size": deployment.plan.block_size,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "speculative_config": drafter_with_kv(engine),
    }


def _as_stored(deployment: Deployment) -> Mapping[str, object]:
    """The same, and how many GPUs share a chunk, whose key has the rank (`PoolKey` of mooncake/store/data.py, 0.33)."""
    return {**_as_pulled(deployment), "tensor_parallel_size": deployment.engine.tensor_parallel_size}


def _check_engine(what: str, deployment: Deployment) -> None:
    engine = deployment.engine
    beside: dict[str, bool] = {
        "pipeline_parallel_size": engine.pipeline_parallel_size > 1,
        "max_num_queued_reqs": engine.max_num_queued_reqs is not None,
        "max_num_queued_tokens": engine.max_num_queued_tokens is not None,
    } | dict.fromkeys(alone_with_their_kv(engine), True)
    for name, is_there in beside.items():
        if is_there:
            raise ConfigError(f"{what} is not simulated with {name}; leave one of them out.")
    if not engine.enable_prefix_caching:
        raise ConfigError(
            f"{what} shares cached prefixes, and enable_prefix_caching is off, as vLLM before 0.28 has it for models with states; enable it, or leave {what} out."
        )


def _check_store(options: StoreOptions, deployment: Deployment) -> None:
    engine, plan = deployment.engine, deployment.plan
    check_states("kv_store", engine, plan)
    if options.save_decode_cache and not plan.has_full_attention_alone:
        raise ConfigError(
            "kv_store: save_decode_cache is simulated for full attention alone, got a model with sliding windows or states; leave it out."
        )
    drafts = engine.speculation
    if not plan.has_full_attention_alone and drafts is not None and drafts.doubts_last_block:
        raise ConfigError(
            f"kv_store is not simulated with speculative_config of method {drafts.method} for models with sliding windows or states, whose drafter has"
            " the last block of a hit computed again; leave one of them out, or draft by ngram or a draft_model."
        )
    _check_chunks(options, ReplicaKV(plan.kv_groups, engine.num_gpus), plan.block_size)


def _check_chunks(options: StoreOptions, kv: ReplicaKV, block_size: int) -> None:
    chunk_tokens = options.chunk_blocks(kv, block_size) * block_size
    asked = chunk_tokens if options.chunk_tokens is None else options.chunk_tokens
    if kv.is_stored_by_block and asked != block_size:
        raise ConfigError(
            f"kv_store: of models with sliding windows or states a chunk is a block, as for vLLM's MooncakeStoreConnector, got chunk_tokens {asked}"
            f" and block_size {block_size}; leave chunk_tokens out."
        )
    if asked != chunk_tokens:
        raise ConfigError(f"kv_store: chunk_tokens must be a multiple of block_size, {block_size}, got {asked}.")
    if options.num_chunks(kv, block_size) < 1:
        raise ConfigError(
            f"kv_store: capacity_gib {options.capacity_gib:g} holds no chunk of {chunk_tokens} tokens; raise it."
        )


CHECKS: Mapping[str, Callable[[OptionsLike], object]] = {"kv_store": store_options, "kv_pull": pull_options}
"""By the name of the section."""
