"""A sentence for each given engine argument that has no effect, or another than asked for, and for what a layout leads over the network."""

from collections.abc import Iterator

from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec, ceil_div
from sim.specs.releases import (
    NEWEST,
    OLDEST,
    SWITCHES_CHUNKED_PREFILL_SINCE,
    is_newer_than_known,
    parse_version,
    release_for,
)
from sim.units import GIGA

READ_ARGUMENTS = ("cpu_offload_gb", "cpu_offload_params")
COPY_ARGUMENTS = ("offload_group_size", "offload_num_in_group", "offload_prefetch_step", "offload_params")
IDLE_OFFLOAD_ARGUMENTS = {
    None: ("no weights stay in host memory", (*READ_ARGUMENTS, *COPY_ARGUMENTS)),
    "uva": ("weights are read where they are", COPY_ARGUMENTS),
    "prefetch": ("offload_group_size replaces it", READ_ARGUMENTS),
}
LORA_ARGUMENTS = ("max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras")
DUAL_BATCH_ARGUMENTS = ("dbo_decode_token_threshold", "dbo_prefill_token_threshold")
GRAPH_ARGUMENTS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")


def engine_notes(engine: EngineConfig, vllm_version: str | None) -> tuple[str, ...]:
    """For that version of vLLM, the newest for None. Raises ConfigError for one that cannot be simulated."""
    return (
        *_of_version(vllm_version),
        *_of_what_ifs(engine),
        *_of_chunked_prefill(engine, vllm_version),
        *_of_arguments(engine),
    )


def layout_notes(engine: EngineConfig, gpu: HardwareProfile) -> tuple[str, ...]:
    """What crosses the network, whose times are put together of messages between two nodes, in a replica of several nodes."""
    together, ranks = gpu.num_gpus_together, engine.tensor_parallel_size
    network = f"the network ({gpu.network_bytes_per_s / GIGA:g} GB/s a GPU)"
    if ranks > together:
        num_nodes = ceil_div(ranks, together)
        note = (
            f"tensor_parallel_size {ranks} takes {num_nodes} nodes of {together} {gpu.name}: every all-reduce crosses {network}, for which"
            " there are no measured times; pipeline stages of a node each would send one message instead."
        )
        return (note,)
    if engine.num_gpus > together:
        return (
            f"{engine.num_gpus} GPUs take more than one node of {together} {gpu.name}: stages send over {network}.",
        )
    return ()


def _of_version(vllm_version: str | None) -> Iterator[str]:
    """The known version that stands for an unknown one."""
    version, taken_as = vllm_version or NEWEST, release_for(vllm_version).version
    asked = parse_version(version)
    if asked != parse_version(taken_as):
        age = "newer" if is_newer_than_known(version) else "older" if asked < parse_version(OLDEST) else ""
        known = f"{age} than any known ({OLDEST} to {NEWEST})" if age else "not one of the versions known"
        yield f"vLLM {'.'.join(map(str, asked))} is {known}; it is taken as {taken_as}."


def _of_what_ifs(engine: EngineConfig) -> Iterator[str]:
    for name, value in engine.what_ifs.items():
        yield f"{name} {value} is a what-if: no vLLM has it."


def _of_chunked_prefill(engine: EngineConfig, vllm_version: str | None) -> Iterator[str]:
    release = release_for(vllm_version)
    if release.forces_chunked_prefill and engine.enable_chunked_prefill is False:
        yield (
            f"enable_chunked_prefill=False changes nothing: vLLM {release.version} splits prompts whatever is asked for, "
            f"and obeys from {SWITCHES_CHUNKED_PREFILL_SINCE} on."
        )


def _of_arguments(engine: EngineConfig) -> Iterator[str]:
    given = engine.given
    if engine.enforce_eager:
        for name in filter(given.__contains__, GRAPH_ARGUMENTS):
            yield f"{name} changes nothing here: enforce_eager captures no CUDA graphs."
    if {"kv_cache_memory_bytes", "gpu_memory_utilization"} <= given.keys():
        yield "gpu_memory_utilization changes nothing here: kv_cache_memory_bytes replaces it."
    yield from _of_host_memory(engine)
    if engine.prefix_cache_eviction != "lru" and (
        engine.enable_prefix_caching is False or engine.kv_allocation == "contiguous"
    ):
        yield "prefix_cache_eviction changes nothing here: without prefix caching no free block has a content."
    if not engine.enable_lora:
        for name in filter(given.__contains__, LORA_ARGUMENTS):
            yield f"{name} changes nothing here: without enable_lora there are no adapters."
    if engine.enable_lora:
        yield "intervals do not cover what LoRA adapters add to a step: two measured runs alone say that it is about right."
    yield from _of_ranks(engine)


def _of_ranks(engine: EngineConfig) -> Iterator[str]:
    yield from _of_addresses(engine)
    if engine.all2all_backend != "allgather_reducescatter" and not (
        engine.data_parallel_size > 1
        and (engine.enable_expert_parallel or engine.all2all_backend == "deepep_high_throughput")
    ):
        yield "all2all_backend changes nothing here: data-parallel ranks with enable_expert_parallel use it."
    if not engine.enable_dbo:
        for name in filter(engine.given.__contains__, DUAL_BATCH_ARGUMENTS):
            yield f"{name} changes nothing here: without enable_dbo no step is split."


def _of_addresses(engine: EngineConfig) -> Iterator[str]:
    if not engine.data_parallel_hybrid_lb:
        if engine.data_parallel_size_local is not None:
            yield "data_parallel_size_local changes nothing here: without data_parallel_hybrid_lb no node has an address of its own."
    elif engine.num_addresses == 1:
        yield "data_parallel_hybrid_lb changes nothing here: one node has all data-parallel ranks."
    elif engine.ranks_per_address == 1:
        yield "data_parallel_hybrid_lb is data_parallel_external_lb here, as vLLM takes it: a node has one data-parallel rank."


def ranks_notes(engine: EngineConfig, model: ModelSpec) -> tuple[str, ...]:
    """On arguments of data-parallel ranks that share experts."""
    if engine.enable_dbo and not (engine.data_parallel_size > 1 and model.has_experts):
        return ("enable_dbo changes nothing here: it splits steps of data-parallel ranks that share experts.",)
    return ()


def _of_host_memory(engine: EngineConfig) -> Iterator[str]:
    why, idle = IDLE_OFFLOAD_ARGUMENTS[engine.weight_offload]
    for name in filter(engine.given.__contains__, idle):
        yield f"{name} changes nothing here: {why}."
    if engine.weight_offload:
        yield "intervals do not cover the time that weights in host memory take, of which no run here was measured well."
    if "swap_space" in engine.given and engine.preemption_mode == "recompute":
        yield "swap_space changes nothing here: without preemption_mode swap no request is swapped out."
    if engine.eviction_policy != "lru" and not engine.kv_offloading_size:
        yield "eviction_policy changes nothing here: without kv_offloading_size no KV is in host memory."
