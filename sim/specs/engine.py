"""vLLM's engine arguments under vLLM's own names: as given, and resolved against a model, a GPU and a vLLM version.

How many data-parallel ranks of a server are behind each of its addresses follows vLLM's engine/arg_utils.py (`create_engine_config`, 0.32 and 0.33):
`data_parallel_hybrid_lb` takes `data_parallel_size_local`, without which it is refused, as it is beside `data_parallel_external_lb`; of one rank it
is an address a rank, of all it is none of its own.
Deliberate difference: all nodes of a server with `data_parallel_hybrid_lb` have as many ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sim.errors import ConfigError, check_choice
from sim.specs.arguments import (
    DENSELY,
    MAX_BYTES,
    Argument,
    argument,
    check_block_size,
    check_capture_sizes,
    check_cpu_offload_gb,
    check_gpu_memory_utilization,
    check_kv_offloading_size,
    check_layer_partition,
    check_max_lora_rank,
    check_max_model_len,
    check_offload_params,
    check_quantization,
    check_retention_interval,
    check_speculative_config,
    check_swap_space,
    check_watermark,
    choice,
    count,
    switch,
)
from sim.specs.kv_transfer import EvictionPolicyName
from sim.specs.rules import SchedulingRules
from sim.specs.speculation import Speculation
from sim.specs.speculative_config import SpeculativeConfig

Policy = Literal["fcfs", "priority", "sjf", "fair_share"]
Batching = Literal["continuous", "static"]
KVAllocation = Literal["paged", "contiguous"]
PreemptionMode = Literal["recompute", "swap"]
PrefixCacheEviction = Literal["lru", "lfu", "size_aware"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
MoEBackend = Literal["auto", "marlin"]
"""Marlin's kernels for experts are timed in place of the default ones; vLLM has others, which are not told apart."""
PerformanceMode = Literal["balanced", "interactivity", "throughput"]
UsageContext = Literal["server", "offline"]
OffloadBackend = Literal["auto", "uva", "prefetch"]
All2AllBackend = Literal[
    "allgather_reducescatter",
    "deepep_high_throughput",
    "deepep_low_latency",
    "flashinfer_nvlink_one_sided",
    "flashinfer_nvlink_two_sided",
]
"""Those whose times were measured; vLLM has others."""

DUAL_BATCH_BACKENDS = ("deepep_low_latency", "deepep_high_throughput")
"""Of those the ones that go with dual-batch overlap."""

KV_CACHE_DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def _check_eviction_policy(name: str, value: object) -> None:
    """That of the CPU tier, whose name is what the other is often called."""
    policies, of_the_gpu = get_args(EvictionPolicyName), get_args(PrefixCacheEviction)
    if value in of_the_gpu and value not in policies:
        raise ConfigError(
            f"{name} is that of KV in host memory; for the GPU's cached blocks give prefix_cache_eviction {value}."
        )
    check_choice(name, value, policies)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Arguments as a user gives them to `vllm serve`; None leaves the choice to the vLLM version, the GPU and the model.

    `max_model_len="auto"` (vLLM's -1) shrinks the context to what fits. `quantization` quantises bf16 weights as
    `--quantization` would (fp8, ...); a checkpoint's own quantization_config needs no flag.
    """

    tensor_parallel_size: int = count(1, "GPUs that share each layer (-tp)")
    pipeline_parallel_size: int = count(1, "groups of GPUs that share out the layers (-pp)")
    data_parallel_size: int = count(1, "engines that one server shares requests out to (-dp)")
    data_parallel_external_lb: bool = switch(
        False, "its router knows each of these engines by an address of its own (-dpe)"
    )
    data_parallel_hybrid_lb: bool = switch(
        False, "its router knows each node, which shares out what it is sent to its own engines (-dph)", since="0.10.0"
    )
    data_parallel_size_local: int | None = count(None, "engines of such a node (-dpl)")
    enable_expert_parallel: bool = switch(False, "whole experts on each GPU instead of slices of all (-ep)")
    all2all_backend: All2AllBackend = choice("allgather_reducescatter", get_args(All2AllBackend))
    moe_backend: MoEBackend = choice("auto", get_args(MoEBackend))
    enable_eplb: bool = switch(False, "place experts by their load, the busiest on several GPUs")
    num_redundant_experts: int = count(0, "copies of experts that it may place", at_least=0, is_flag=False)
    enable_dbo: bool = switch(
        False, "split large steps of data-parallel ranks in two, to compute while tokens are sent", since="0.11.0"
    )
    dbo_decode_token_threshold: int = count(
        32, "tokens of a rank from which on steps that only decode are split", at_least=2, since="0.11.0"
    )
    dbo_prefill_token_threshold: int = count(512, "the same of other steps", at_least=2, since="0.11.0")
    prefill_schedule_interval: int = count(
        1, "steps of which one lets prompts in; before 0.33 of data-parallel ranks alone", since="0.32.0"
    )
    max_model_len: int | Literal["auto"] | None = argument(
        None, "integer", "longest prompt plus output; auto takes what fits", check_max_model_len
    )
    max_num_seqs: int | None = count(None, "requests in a batch at most")
    max_num_batched_tokens: int | None = count(None, "tokens in a step at most")
    max_num_scheduled_tokens: int | None = count(None, "tokens scheduled in a step, where fewer", since="0.17.0")
    max_num_active_seqs: int | None = count(None, "running requests, where fewer than max-num-seqs", since="0.31.0")
    max_num_queued_reqs: int | None = count(
        None, "requests that a server has at most, running or not; it answers 503 to more", since="0.29.0"
    )
    max_num_queued_tokens: int | None = count(
        None, "tokens of prompts without a first token from which on it answers 503", since="0.29.0"
    )
    gpu_memory_utilization: float | None = argument(
        None,
        "number",
        "share of GPU memory that vLLM may use",
        check_gpu_memory_utilization,
        defaults={"0.8.0": 0.90, "0.20.0": 0.92},
    )
    kv_cache_memory_bytes: int | None = count(
        None, "KV cache per GPU, instead of what profiling leaves", at_most=MAX_BYTES, since="0.10.2"
    )
    num_gpu_blocks_override: int | None = count(
        None,
        "KV blocks, instead of what fits",
        at_least=2,  # block 0 is the null block
    )
    kv_offloading_size: float | None = argument(
        None, "number", "GiB of host memory for KV, over all GPUs", check_kv_offloading_size, since="0.11.1"
    )
    eviction_policy: EvictionPolicyName = argument(
        "lru",
        "text",
        "what makes room in host memory, lru or arc",
        _check_eviction_policy,
        choices=get_args(EvictionPolicyName),
        since="0.11.2",
        is_flag=False,
    )
    cpu_offload_gb: float = argument(
        0.0, "number", "GiB of weights a GPU that stay in host memory, and are read there", check_cpu_offload_gb
    )
    cpu_offload_params: tuple[str, ...] = argument(
        (), "texts", "names of weights that alone do, such as experts", check_offload_params, since="0.19.1"
    )
    offload_group_size: int = count(
        0,
        "layers in a group of which the last stay in host memory, and are copied ahead; 0 is off",
        at_least=0,
        since="0.19.1",
    )
    offload_num_in_group: int = count(1, "how many of a group do", since="0.19.1")
    offload_prefetch_step: int = count(1, "how many of them ahead they are copied", since="0.19.1")
    offload_params: tuple[str, ...] = argument(
        (), "texts", "names of their weights that alone are", check_offload_params, since="0.19.1"
    )
    offload_backend: OffloadBackend = choice("auto", get_args(OffloadBackend), since="0.19.1")
    block_size: int | None = argument(None, "integer", "tokens in a KV block", check_block_size)
    kv_cache_dtype: str = choice("auto", ("auto", *KV_CACHE_DTYPE_BYTES))
    quantization: str | None = argument(None, "text", "quantise the weights, such as fp8 (-q)", check_quantization)
    language_model_only: bool = switch(False, "leave a vision tower out", since="0.17.0")
    enable_lora: bool = switch(False, "serve the LoRA adapters that a trace's `lora_name` asks for")
    max_loras: int = count(1, "adapters in a batch at most")
    max_lora_rank: int = argument(
        16, "integer", "rank that adapters may have, and are taken to have", check_max_lora_rank
    )
    max_cpu_loras: int | None = count(None, "adapters kept in host memory, as many as max-loras by default")
    fully_sharded_loras: bool = switch(False, "share out all of an adapter, not half of it, by tensor parallelism")
    enable_prefix_caching: bool | None = switch(
        None, "reuse the KV blocks of equal prefixes: by default, but of models whose layers keep states from 0.28 on"
    )
    prefix_cache_retention_interval: int | str | None = argument(
        None,
        "integer",
        "tokens between the places of a prompt that stay cached for sliding windows, 0 for its end and for where prompts part, None for all",
        check_retention_interval,
        since="0.30.0",
        defaults={"0.8.0": DENSELY, "0.30.0": 0},
    )
    enable_chunked_prefill: bool | None = switch(None, "split prompts over steps")
    scheduling_policy: Policy = choice("fcfs", get_args(Policy), what_ifs=("sjf", "fair_share"))
    batching: Batching = choice("continuous", get_args(Batching), what_ifs=("static",))
    kv_allocation: KVAllocation = choice("paged", get_args(KVAllocation), what_ifs=("contiguous",))
    prefix_cache_eviction: PrefixCacheEviction = choice(
        "lru", get_args(PrefixCacheEviction), what_ifs=("lfu", "size_aware")
    )
    preemption_mode: PreemptionMode = choice("recompute", get_args(PreemptionMode), what_ifs=("swap",))
    swap_space: float = argument(
        4.0, "number", "GiB of host memory a GPU for requests swapped out by preemption-mode swap", check_swap_space
    )
    async_scheduling: bool | None = switch(None, "schedule a step while the one before runs", since="0.10.0")
    long_prefill_token_threshold: int = count(0, "tokens a request gets in a step at most; 0 is off", at_least=0)
    long_prefill_token_threshold_adaptive: bool = switch(
        False, "raise that to a fair share of the step", since="0.31.0"
    )
    scheduler_reserve_full_isl: bool | None = switch(
        None,
        "admit a request only if all its tokens fit now",
        since="0.19.0",
        defaults={"0.8.0": False, "0.19.0": True},
    )
    watermark: float = argument(
        0.0, "number", "share of KV blocks kept free on admission", check_watermark, since="0.24.0"
    )
    enforce_eager: bool = switch(False, "no CUDA graphs")
    cudagraph_mode: CudagraphMode | None = choice(None, get_args(CudagraphMode), since="0.10.1", is_flag=False)
    cudagraph_capture_sizes: tuple[int, ...] | None = argument(
        None, "sizes", "batch sizes captured as CUDA graphs", check_capture_sizes
    )
    max_cudagraph_capture_size: int | None = count(None, "largest of them", since="0.11.1")
    performance_mode: PerformanceMode = choice("balanced", get_args(PerformanceMode), since="0.17.0")
    speculative_config: SpeculativeConfig | None = argument(
        None, "object", "draft tokens ahead and verify them together (-sc)", check_speculative_config, is_flag=False
    )
    pp_layer_partition: tuple[int, ...] | None = argument(
        None, "sizes", "layers of each pipeline stage, in vLLM VLLM_PP_LAYER_PARTITION", check_layer_partition
    )

    def __post_init__(self) -> None:
        if self.speculative_config is not None:
            object.__setattr__(self, "speculative_config", SpeculativeConfig.parse(self.speculative_config))
        for entry in fields(self):
            if (value := getattr(self, entry.name)) is not entry.default:
                self.check_argument(entry.name, value)
        for name in ("cudagraph_capture_sizes", "cpu_offload_params", "offload_params"):
            if (several := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(sorted(set(several))))  # as vLLM takes them
        if self.pp_layer_partition is not None:
            object.__setattr__(self, "pp_layer_partition", tuple(self.pp_layer_partition))
        self._check_together()

    @classmethod
    def check_argument(cls, name: str, value: Any) -> None:
        """Raises ConfigError for a value that the argument does not take, whatever the others are."""
        cls.__dataclass_fields__[name].metadata["argument"].check(name, value)

    def _check_together(self) -> None:
        """Raises ConfigError for values that exclude each other."""
        if self.weight_offload == "prefetch" and self.offload_num_in_group > self.offload_group_size:
            raise ConfigError(
                f"offload_num_in_group must be at most offload_group_size, {self.offload_group_size}, got"
                f" {self.offload_num_in_group}; lower it."
            )
        if self.kv_allocation == "contiguous" and self.enable_prefix_caching:
            raise ConfigError(
                "kv_allocation contiguous shares nothing, got enable_prefix_caching; leave one of them out."
            )
        self._check_addresses()
        if self.enable_eplb and not self.enable_expert_parallel:
            raise ConfigError("enable_eplb places whole experts, got no enable_expert_parallel; add it.")
        if self.enable_eplb and self.num_expert_ranks == 1:
            raise ConfigError(
                "enable_eplb places experts on several GPUs, got one; raise tensor_parallel_size or data_parallel_size, or leave it out."
            )
        if self.num_redundant_experts and not self.enable_eplb:
            raise ConfigError(
                f"num_redundant_experts are placed by enable_eplb, got {self.num_redundant_experts} without it; add it."
            )
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"max_cpu_loras must be at least max_loras, {self.max_loras}, got {self.max_cpu_loras}; raise it."
            )

    def _check_addresses(self) -> None:
        """Raises ConfigError for addresses that no server has."""
        size, local = self.data_parallel_size, self.data_parallel_size_local
        if self.data_parallel_external_lb and size == 1:
            raise ConfigError(
                "data_parallel_external_lb gives each data-parallel rank an address, got data_parallel_size 1; raise it, or leave the other out."
            )
        if not self.data_parallel_hybrid_lb:
            return
        if self.data_parallel_external_lb:
            raise ConfigError(
                "data_parallel_hybrid_lb gives each node an address, got data_parallel_external_lb, which gives each rank one, as well; leave"
                " one of them out."
            )
        if local is None:
            raise ConfigError(
                "data_parallel_hybrid_lb needs data_parallel_size_local, the data-parallel ranks of a node, got none; add it."
            )
        if size % local:
            raise ConfigError(
                f"data_parallel_size_local must divide data_parallel_size, {size}, as each node of data_parallel_hybrid_lb is taken to have"
                f" as many ranks, got {local}; choose another."
            )

    @property
    def num_gpus(self) -> int:
        """Of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_per_address(self) -> int:
        """Data-parallel ranks behind each address of a server: one, those of a node, or all."""
        if self.data_parallel_external_lb:
            return 1
        local = self.data_parallel_size_local if self.data_parallel_hybrid_lb else None
        return local or self.data_parallel_size

    @property
    def num_addresses(self) -> int:
        """Of a server."""
        return self.data_parallel_size // self.ranks_per_address

    @property
    def num_expert_ranks(self) -> int:
        """GPUs that share out the experts of a layer: all of a server's in one stage."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def num_balanced_copies(self) -> int | None:
        """Copies of experts that are placed by load; None where experts lie as they come."""
        return self.num_redundant_experts if self.enable_eplb else None

    @property
    def weight_offload(self) -> Literal["uva", "prefetch"] | None:
        """How weights in host memory get to the GPU: read where they are, or copied ahead, which is taken of the two."""
        if self.offload_backend == "auto":
            return "prefetch" if self.offload_group_size else "uva" if self.cpu_offload_gb else None
        return self.offload_backend if self.offload_backend == "prefetch" or self.cpu_offload_gb else None

    @property
    def what_ifs(self) -> dict[str, str]:
        """Those given that no vLLM has."""
        values = {name: getattr(self, name) for name in ARGUMENTS}
        return {name: value for name, value in values.items() if value in ARGUMENTS[name].what_ifs}

    @property
    def given(self) -> dict[str, Any]:
        """Those that are not at their defaults, in order: what a command line has to spell out."""
        values = {entry: getattr(self, entry.name) for entry in fields(self)}
        return {entry.name: value for entry, value in values.items() if value != entry.default}

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has them."""
        return {name: _as_json(value) for name, value in self.given.items()}


def _as_json(value: Any) -> Any:
    if isinstance(value, SpeculativeConfig):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


ARGUMENTS: Mapping[str, Argument] = {entry.name: entry.metadata["argument"] for entry in fields(EngineConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedEngine(EngineConfig):
    """The same arguments with every choice made, as vLLM's start-up would make it; read by memory, steptime and engine.

    What a version, a GPU or a model decides is declared again, as never left open; all else is as given. `max_model_len`
    is None while "auto" waits for the memory plan. `cudagraph_capture_sizes` is ascending and empty under `enforce_eager`
    (mode NONE). `kv_cache_dtype_bytes` is bytes a stored number. `speculation` is what `speculative_config` comes to.
    """

    vllm_version: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    block_size: int
    kv_cache_dtype_bytes: int
    enable_prefix_caching: bool
    prefix_cache_retention_interval: int | str
    enable_chunked_prefill: bool
    async_scheduling: bool
    scheduler_reserve_full_isl: bool
    cudagraph_mode: CudagraphMode
    cudagraph_capture_sizes: tuple[int, ...]
    speculation: Speculation | None = None
    writes_state_checkpoints: bool  # a pass, before its chunk's end: see prefill_checkpoints.py
    state_block_alignment_tokens: int
    rules: SchedulingRules
    subtracts_graph_memory: bool  # from the KV budget: since 0.20.0
    counts_tokens_of_requests: bool  # in the cache size it logs: since 0.20.1

    def __post_init__(self) -> None:
        """What was given is checked already."""

    @property
    def uniform_query_len(self) -> int:
        """Tokens of each request in a batch that full decode graphs can hold: one, and all its drafts."""
        return 1 + (self.speculation.num_speculative_tokens if self.speculation else 0)

    @property
    def num_batches_in_flight(self) -> int:
        """vLLM's batch queue: one a pipeline stage, and one more under async scheduling, where the version has it so."""
        return batches_in_flight(self.pipeline_parallel_size, is_async=self.async_scheduling, rules=self.rules)


def batches_in_flight(num_stages: int, *, is_async: bool, rules: SchedulingRules) -> int:
    """Batches that are launched before the oldest has to come back."""
    has_spare = is_async and (num_stages == 1 or rules.paces_decodes)
    return num_stages + has_spare
