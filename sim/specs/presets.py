"""Engine arguments by use case, each for what it promises; `python -m benchmarks.presets` says where it keeps that, docs/seeds.md tells of it."""

from collections.abc import Mapping
from typing import Any

from sim.errors import check_choice
from sim.specs.engine import EngineConfig

PRESET = "preset"
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # steady gaps between tokens beside long prompts, as vLLM's main features 4.5 has it: its chunk_size is vLLM's long_prefill_token_threshold
    "chat": {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 256},
    # most tokens a second where nobody waits: steps of many tokens, many seats, a large cache
    "batch": {"max_num_batched_tokens": 8192, "max_num_seqs": 512, "gpu_memory_utilization": 0.95},
    # first tokens soon: who comes waits for the step that runs, not for the one behind it as well
    "interactive": {"async_scheduling": False},
    # the best practices of vLLM's main features, as they stand there: a model of 70 billion parameters in production
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
