"""The autotuning design's own scorer: formulas on memory and batch sizes, no simulation.

The design names `fragmentation_overhead_factor` without using it; here a feasible cache holds that many of the longest
sequences. benchmarks/search_analytic.py shows how often the scorer's choice is wrong, and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sim.search.analytic.workload_profile import WorkloadProfile
from sim.specs.autotuning import ASSUMED_VOCAB_SIZE, AutotuningParameters
from sim.specs.capture_sizes import listed_sizes
from sim.specs.model import ModelSpec
from sim.specs.releases import release_for
from sim.units import GIB

ONE_BYTE_CACHES = ("fp8", "fp8_e4m3", "fp8_e5m2")
LARGEST_DEFAULT_SIZE = 512
DESIGNS = ("v0", "v1")


class SpecConfig(NamedTuple):
    """A ModelSpec under the names of a transformers config, for models that come from the catalogue."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    intermediate_size: int
    torch_dtype: str

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        return cls(
            hidden_size=model.hidden_size,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_attention_heads,
            num_key_value_heads=max(1, *(layer.attention.num_kv_heads for layer in model.layers)),
            vocab_size=model.vocab_size,
            intermediate_size=model.intermediate_size,
            torch_dtype=model.dtype,
        )


def get_vllm_default_capture_sizes(max_limit: int, vllm_version: str = "v1") -> list[int]:
    """1, 2, 4 and the multiples of 8 up to 512, as far as `max_limit`: the design's, of its "v0" and "v1" alike.

    Of a released version, such as "0.33.0", those that it captures by default up to that size. Raises ConfigError for another word.
    """
    if vllm_version in DESIGNS:
        return [size for size in (1, 2, 4, *range(8, LARGEST_DEFAULT_SIZE + 1, 8)) if size <= max_limit]
    most = min(max_limit, LARGEST_DEFAULT_SIZE)
    return list(
        listed_sizes(
            release_for(vllm_version).capture, most, max_num_seqs=most, max_num_batched_tokens=LARGEST_DEFAULT_SIZE
        )
    )


def calculate_model_memory_from_config(config: Any) -> float:
    """GiB of weights by the design's rough count: four square matrices for attention and two for the MLP a layer."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    intermediate = getattr(config, "intermediate_size", 4 * hidden)
    per_layer = 4 * hidden * hidden + 2 * hidden * intermediate + 2 * hidden
    embedding = getattr(config, "vocab_size", ASSUMED_VOCAB_SIZE) * hidden
    num_parameters = embedding + layers * per_layer + hidden
    return float(num_parameters * _bits(config) / 8 / GIB)


def _bits(config: Any) -> float:
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        bits: float = quantization.get("bits", 16)
        return bits
    dtype = str(getattr(config, "torch_dtype", None) or "float32")
    return 16 if "float16" in dtype else 8 if "fp8" in dtype else 32


def estimate_activation_memory_from_config(
    config: Any, batch_size: int, sequence_length: int, parameters: AutotuningParameters | None = None
) -> float:
    """GiB at peak: queries, keys, values, attention scores and MLP of one layer in 16 bits, times the design's factor."""
    tokens, hidden = batch_size * sequence_length, config.hidden_size
    attention = 3 * tokens * hidden * 2
    scores = config.num_attention_heads * tokens * sequence_length * 2
    mlp = tokens * getattr(config, "intermediate_size", 4 * hidden) * 2
    return float((attention + scores + mlp) * (parameters or AutotuningParameters()).activation_memory_factor / GIB)


@dataclass(frozen=True, slots=True)
class vLLMPerformanceModel:  # noqa: N801 - the design's name
    """The design's view of one configuration; memory in GiB, as its names have it (`_gb`)."""

    gpu_memory_capacity_gb: float
    model_memory_gb: float
    activation_memory_gb: float
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    gpu_memory_utilization: float
    cudagraph_capture_sizes: Sequence[int]
    max_model_len: int
    kv_cache_dtype: str
    tuning_params: AutotuningParameters

    @classmethod
    def from_transformers_config(
        cls,
        config: Any,
        gpu_memory_capacity_gb: float,
        gpu_memory_utilization: float,
        max_model_len: int,
        tuning_params: AutotuningParameters | None = None,
        *,
        cudagraph_capture_sizes: Sequence[int] | None = None,
        kv_cache_dtype: str = "auto",
    ) -> Self:
        """From a transformers config or anything with its attributes; capture sizes of None are the default list."""
        parameters = tuning_params or AutotuningParameters()
        batch_size, length = parameters.activation_batch_size, parameters.activation_sequence_length
        return cls(
            gpu_memory_capacity_gb=gpu_memory_capacity_gb,
            model_memory_gb=calculate_model_memory_from_config(config),
            activation_memory_gb=estimate_activation_memory_from_config(config, batch_size, length, parameters),
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", config.num_attention_heads),
            vocab_size=getattr(config, "vocab_size", ASSUMED_VOCAB_SIZE),
            gpu_memory_utilization=gpu_memory_utilization,
            cudagraph_capture_sizes=_given_or_default(cudagraph_capture_sizes),
            max_model_len=max_model_len,
            kv_cache_dtype=kv_cache_dtype,
            tuning_params=parameters,
        )

    def calculate_memory_breakdown(self) -> dict[str, float]:
        """GiB by use; the KV cache has what is left, which may be below zero."""
        total = self.gpu_memory_capacity_gb * self.gpu_memory_utilization
        graphs = sum(map(self._graph_memory_gb, self.cudagraph_capture_sizes))
        return {
            "model_memory": self.model_memory_gb,
            "activation_memory": self.activation_memory_gb,
            "cuda_graph_memory": graphs,
            "kv_cache_memory": total - self.model_memory_gb - self.activation_memory_gb - graphs,
            "total_used": total,
            "utilization_ratio": self.gpu_memory_utilization,
        }

    def calculate_effective_batch_size(self) -> int:
        """Sequences of max_model_len that the KV cache holds."""
        return max(0, int(self._num_sequences()))

    def calculate_graph_coverage(self, workload: WorkloadProfile) -> float:
        """Share of batches whose very size is captured."""
        batches = workload.batch_size_distribution
        total = sum(batches.values())
        covered = sum(frequency for size, frequency in batches.items() if size in self.cudagraph_capture_sizes)
        return covered / total if total > 0 else 0.0

    def is_feasible_config(self) -> bool:
        """Whether the cache has its least share of the GPU and holds a sequence, fragmentation allowed for."""
        parameters = self.tuning_params
        kv_cache_gb = self.calculate_memory_breakdown()["kv_cache_memory"]
        least_gb = self.gpu_memory_capacity_gb * parameters.min_kv_cache_ratio
        return kv_cache_gb >= least_gb and self._num_sequences() >= parameters.fragmentation_overhead_factor

    def evaluate_config(self, workload: WorkloadProfile) -> float:
        """The design's score, higher is better; scores of different target metrics do not compare."""
        parameters, batch = self.tuning_params, self.calculate_effective_batch_size()
        coverage = self.calculate_graph_coverage(workload)
        if workload.target_metric == "throughput":
            return batch * (parameters.throughput_batch_weight + coverage * parameters.throughput_graph_weight)
        scaled = batch / parameters.latency_batch_scale
        return coverage * parameters.latency_graph_weight + scaled * parameters.latency_batch_weight

    def get_config_predictions(self, workload: WorkloadProfile) -> dict[str, Any]:
        batch = self.calculate_effective_batch_size()
        return {
            "effective_batch_size": batch,
            "graph_coverage": self.calculate_graph_coverage(workload),
            "memory_breakdown": self.calculate_memory_breakdown(),
            "recommended_max_num_seqs": min(batch, workload.get_expected_max_batch_size(percentile=0.95)),
        }

    def _graph_memory_gb(self, size: int) -> float:
        parameters = self.tuning_params
        growth = 1 + size * parameters.graph_memory_batch_scaling_factor
        base = self.model_memory_gb * parameters.graph_memory_overhead_base_ratio
        return base * growth * parameters.compilation_memory_multiplier

    def _num_sequences(self) -> float:
        head_dim = self.hidden_size // self.num_attention_heads
        dtype_bytes = 1 if self.kv_cache_dtype in ONE_BYTE_CACHES else 2
        bytes_per_token = self.num_key_value_heads * head_dim * 2 * dtype_bytes * self.num_layers
        return self.calculate_memory_breakdown()["kv_cache_memory"] * GIB / (bytes_per_token * self.max_model_len)


def _given_or_default(sizes: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(get_vllm_default_capture_sizes(LARGEST_DEFAULT_SIZE) if sizes is None else sizes)
