"""Fitted numbers of the memory model, by vLLM version, each with where it comes from; benchmarks/fit_memory.py writes them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sim.specs.releases import parse_version

PATH = Path(__file__).with_name("parameters.json")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted number and the measurements behind it."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class ProfilingParameters:
    """What vLLM's profiling run finds, from one version on.

    `sampler_logits_copies` counts fp32 logits of max_num_seqs x vocabulary; `hidden_copies` and
    `multimodal_hidden_copies` count 16-bit hidden states of max_num_batched_tokens x hidden size. `unlinked_gpu_bytes`
    comes on top on GPUs without a fast link, `non_torch_pipeline_bytes` is all there is on stages of one GPU each.
    """

    sampler_logits_copies: Fitted
    fixed_activation_bytes: Fitted
    hidden_copies: Fitted
    multimodal_hidden_copies: Fitted
    non_torch_bytes: Fitted
    non_torch_parallel_bytes: Fitted
    non_torch_pipeline_bytes: Fitted
    unlinked_gpu_bytes: Fitted

    def non_torch_for(self, tensor_parallel_size: int, pipeline_parallel_size: int, *, linked: bool) -> Fitted:
        """The large buffers (symmetric memory, custom and fused all-reduce) are allocated on linked GPUs only."""
        if tensor_parallel_size > 1 and linked:
            return self.non_torch_parallel_bytes
        return self.non_torch_pipeline_bytes if pipeline_parallel_size > 1 else self.non_torch_bytes


@dataclass(frozen=True, slots=True)
class TakenGraphParameters:
    """Bytes for each captured graph, for each of its tokens and layers, and more where those layers route to experts."""

    per_graph_bytes: Fitted
    per_token_and_layer_bytes: Fitted
    per_token_and_expert_layer_bytes: Fitted


@dataclass(frozen=True, slots=True)
class EstimatedGraphParameters:
    """Bytes for each graph that vLLM counts: fixed, for each layer, and more for each layer with routed experts."""

    per_graph_bytes: Fitted
    per_layer_bytes: Fitted
    per_expert_layer_bytes: Fitted


@dataclass(frozen=True, slots=True)
class MemoryParameters:
    """All fitted numbers: of the profiling run by the version since which they hold, of graphs as taken and as estimated."""

    profiling: Mapping[str, ProfilingParameters]
    graphs_taken: TakenGraphParameters
    graphs_estimated: EstimatedGraphParameters

    def profiling_for(self, vllm_version: str) -> ProfilingParameters:
        """Those of the newest fitted version up to `vllm_version`; the oldest for what came before all of them."""
        known = sorted(self.profiling, key=parse_version)
        older = [version for version in known if parse_version(version) <= parse_version(vllm_version)]
        return self.profiling[older[-1] if older else known[0]]


@cache
def memory_parameters() -> MemoryParameters:
    """The fitted numbers that come with the package."""
    data = json.loads(PATH.read_text())
    profiling = {version: ProfilingParameters(**_fitted(rows)) for version, rows in data["profiling"].items()}
    graphs = {name: _fitted(rows) for name, rows in data["graphs"].items()}
    taken, estimated = TakenGraphParameters(**graphs["taken"]), EstimatedGraphParameters(**graphs["estimated"])
    return MemoryParameters(profiling, taken, estimated)


def _fitted(rows: dict[str, dict[str, float | str]]) -> dict[str, Fitted]:
    return {name: Fitted(float(row["value"]), str(row["source"])) for name, row in rows.items()}
