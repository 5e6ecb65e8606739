"""Engine arguments by use case, as the documents of docs/seeds.md recommend them; what they are worth stands there."""

from collections.abc import Mapping
from typing import Any

from sim.errors import check_choice
from sim.specs.engine import EngineConfig

PRESET = "preset"
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # vLLM's main features, 4.5: for latency-sensitive workloads (chatbots); its chunk_size is vLLM's long_prefill_token_threshold
    "chat": {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 256},
    # the same, for throughput-oriented workloads (batch processing)
    "batch": {"max_num_batched_tokens": 8192, "long_prefill_token_threshold": 1024},
    # the autotuning specification's search for its workload `interactive`, without the max_model_len of its sequences
    "interactive": {"max_num_seqs": 2, "gpu_memory_utilization": 0.98, "cudagraph_capture_sizes": (1, 2)},
    # vLLM's main features, best practices: a model of 70 billion parameters in production
    "production": {
        "tensor_parallel_size": 4,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.95,
        "block_size": 16,
        "enable_prefix_caching": True,
    },
}


def preset(name: str, **others: Any) -> EngineConfig:
    """The arguments recommended for a use case: `chat`, `batch`, `interactive` or `production`; `others` win over them.

    Raises ConfigError for another name.
    """
    return EngineConfig(**{**preset_arguments(name, PRESET), **others})


def preset_arguments(name: str, where: str) -> Mapping[str, Any]:
    """The same by name; `where` begins the sentence of the ConfigError for a name that is none."""
    check_choice(where, name, tuple(PRESETS))
    return PRESETS[name]
