"""The plan line by line: bytes, the formula with its numbers, and where its constants come from."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.memory.kv_cache import KVCacheLayout, KVGroup
from sim.memory.parameters import GraphParameters, ProfilingParameters, memory_parameters
from sim.memory.profiling import Consumption
from sim.specs.engine import ResolvedEngine
from sim.specs.model import ModelSpec
from sim.units import GIB, MIB


class Line(NamedTuple):
    """One entry; `group` is the ledger's heading that it counts towards."""

    group: str
    name: str
    num_bytes: int
    formula: str
    source: str


def ledger_lines(
    model: ModelSpec, engine: ResolvedEngine, used: Consumption, layout: KVCacheLayout, num_blocks: int
) -> tuple[Line, ...]:
    """All lines in the order in which vLLM takes the memory."""
    profiling = memory_parameters().profiling_for(engine.vllm_version)
    return (
        _requested(used, engine),
        *(Line("weights", part.name, part.num_bytes, part.formula, model.source) for part in used.weights),
        *_activation(model, engine, used, profiling),
        _non_torch(engine, used, profiling),
        *_graphs(engine, used),
        _kv_cache(layout, num_blocks),
    )


def _requested(used: Consumption, engine: ResolvedEngine) -> Line:
    formula = f"{used.total_bytes / GIB:.2f} GiB x {engine.gpu_memory_utilization:g}"
    return Line("requested", "gpu_memory_utilization", used.requested_bytes, formula, "total memory as CUDA reports it")


def _activation(
    model: ModelSpec, engine: ResolvedEngine, used: Consumption, profiling: ProfilingParameters
) -> Iterator[Line]:
    """The sampler or the widest layer, whichever is higher, and what lives through both."""
    peak, tokens = used.activation, engine.max_num_batched_tokens
    if peak.sampler_bytes >= peak.layer_bytes:
        copies = profiling.sampler_logits_copies
        formula = f"{copies.value:.2f} copies x {engine.max_num_seqs} rows x {model.vocab_size:,} logits x 4 bytes"
        yield Line("activations", "sampler", peak.sampler_bytes, formula, copies.source)
    else:
        formula = f"{tokens:,} tokens x widest layer's inputs and outputs"
        yield Line("activations", "widest layer", peak.layer_bytes, formula, "tensors alive at the gated activation")
    if peak.experts_bytes:
        formula = f"{tokens:,} tokens x experts per token x (gate_up + down)"
        yield Line("activations", "experts' workspace", peak.experts_bytes, formula, "buffers of vLLM's fused experts")
    fixed, copies = profiling.fixed_activation_bytes, profiling.hidden_copies
    formula = f"{fixed.value / MIB:.0f} MiB + {copies.value:.2f} x {tokens:,} tokens x {model.hidden_size:,} x 2 bytes"
    if model.num_vision_parameters:
        formula += f" + {profiling.multimodal_hidden_copies.value:.2f} x the same for the vision tower"
    yield Line("activations", "hidden states and buffers", peak.lasting_bytes, formula, copies.source)


def _non_torch(engine: ResolvedEngine, used: Consumption, profiling: ProfilingParameters) -> Line:
    parallel = engine.tensor_parallel_size > 1
    fitted = profiling.non_torch_parallel_bytes if parallel else profiling.non_torch_bytes
    formula = "CUDA context, NCCL and all-reduce buffers" if parallel else "CUDA context"
    return Line("non-torch", "outside PyTorch", used.non_torch_bytes, formula, fitted.source)


def _graphs(engine: ResolvedEngine, used: Consumption) -> Iterator[Line]:
    """What vLLM sets aside, and what graphs take in the end: only the former reduces the KV cache."""
    parameters = memory_parameters()
    if engine.subtracts_graph_memory:
        formula, source = _graph_formula(used, parameters.graphs_estimated), parameters.graphs_estimated
        yield Line("CUDA graphs", "estimate", used.graph_estimate_bytes, formula, source.per_layer_bytes.source)
    formula = _graph_formula(used, parameters.graphs_taken)
    taken = parameters.graphs_taken.per_layer_bytes.source
    yield Line("CUDA graphs taken", "after the cache", used.graph_bytes, formula, taken)


def _graph_formula(used: Consumption, parameters: GraphParameters) -> str:
    each = (
        f"{parameters.per_graph_bytes.value / MIB:.2f} MiB + {parameters.per_layer_bytes.value / MIB:.3f} MiB a layer"
    )
    return f"({used.graphs.piecewise} piecewise + {used.graphs.full} full) x ({each}, more with experts)"


def _kv_cache(layout: KVCacheLayout, num_blocks: int) -> Line:
    formula = f"{num_blocks:,} blocks x {layout.bytes_per_block / MIB:g} MiB; {_groups(layout.groups)}"
    return Line("KV cache", "blocks", num_blocks * layout.bytes_per_block, formula, "vLLM's KV cache groups")


def _groups(groups: tuple[KVGroup, ...]) -> str:
    return " + ".join(
        f"{group.num_layers} {group.kind} layers x {group.page_bytes:,} bytes for {group.block_size} tokens"
        for group in dict.fromkeys(groups)
    )
