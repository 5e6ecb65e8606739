"""Every constant of the autotuning design in one place, to be changed without touching code.

They are rules of thumb that the design states as such; the memory plan and the simulated scorer use measured numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from sim.errors import ConfigError, nearest
from sim.inputs import read_yaml

CompilationLevel = Literal["FULL", "PIECEWISE"]

ASSUMED_VOCAB_SIZE = 50257  # where a config names none: GPT-2's


@dataclass(frozen=True, slots=True)
class AutotuningParameters:
    """The design's constants under its names; ratios and weights are plain numbers. Raises ConfigError for bad values.

    Graph memory of a size is model memory x `graph_memory_overhead_base_ratio` x (1 + size x
    `graph_memory_batch_scaling_factor`) x the compilation multiplier. `latency_batch_scale` is the batch size that
    counts as one unit in the latency score; `assumed_tpot_s` turns output lengths into time where a trace is profiled.
    """

    graph_memory_overhead_base_ratio: float = 0.1
    graph_memory_batch_scaling_factor: float = 0.02
    compilation_memory_multiplier_full: float = 1.8
    compilation_memory_multiplier_piecewise: float = 1.0
    compilation_level: CompilationLevel = "PIECEWISE"
    min_gpu_memory_utilization: float = 0.8
    max_gpu_memory_utilization: float = 0.98
    throughput_batch_weight: float = 0.7
    throughput_graph_weight: float = 0.3
    latency_graph_weight: float = 0.8
    latency_batch_weight: float = 0.2
    latency_batch_scale: float = 32
    fragmentation_overhead_factor: float = 1.05
    min_kv_cache_ratio: float = 0.05
    activation_memory_factor: float = 0.3
    activation_batch_size: int = 32
    activation_sequence_length: int = 512
    assumed_tpot_s: float = 0.02
    low_kv_cache_ratio: float = 0.1
    low_graph_coverage: float = 0.5

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "compilation_level":
                if value not in {"FULL", "PIECEWISE"}:
                    raise ConfigError(f"compilation_level must be FULL or PIECEWISE, got {value!r}.")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{entry.name} must be a number of at least 0, got {value!r}.")

    @classmethod
    def read(cls, path: Path) -> "AutotuningParameters":
        """Those that a YAML file names, the others as they are. Raises ConfigError naming file and field."""
        given = read_yaml(path, ConfigError)
        if not isinstance(given, Mapping):
            raise ConfigError(f"{path}: parameters are a mapping of names to numbers, got {type(given).__name__}.")
        known = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"{path}: {name!r} is no parameter of the design.{nearest(str(name), known)}")
        try:
            return cls(**given)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @property
    def compilation_memory_multiplier(self) -> float:
        """That of the compilation level."""
        if self.compilation_level == "FULL":
            return self.compilation_memory_multiplier_full
        return self.compilation_memory_multiplier_piecewise
