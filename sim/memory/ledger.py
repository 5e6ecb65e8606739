"""The plan line by line: bytes, the formula with its numbers, and where its constants come from."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.memory.design import DESIGN
from sim.memory.kv_cache import KVCacheLayout, KVGroup
from sim.memory.parameters import Fitted, ProfilingParameters, memory_parameters
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
        formula = (
            f"{copies.value:.2f} copies x {engine.max_num_seqs} rows x {model.vocab_size:,} logits x 4 bytes"
            f" + {profiling.hidden_copies.value:.2f} x {tokens:,} tokens x {model.hidden_size:,} x 2 bytes"
        )
        yield Line("activations", "sampler", peak.sampler_bytes, formula, copies.source)
    else:
        formula = f"{tokens:,} tokens x widest layer's inputs and outputs"
        yield Line("activations", "widest layer", peak.layer_bytes, formula, "tensors alive at the gated activation")
    if peak.experts_bytes:
        formula = f"{tokens:,} tokens x experts per token x (gate_up + down)"
        yield Line("activations", "experts' workspace", peak.experts_bytes, formula, "buffers of vLLM's fused experts")
    if peak.gathered_bytes:
        formula = f"2 x {engine.data_parallel_size} x {tokens:,} tokens x {model.hidden_size:,}"
        yield Line(
            "activations", "tokens of all ranks", peak.gathered_bytes, formula, "vLLM's all-gather before experts"
        )
    if peak.handed_bytes:
        formula = f"2 x {tokens:,} tokens x {model.hidden_size:,} x 2 bytes"
        yield Line(
            "activations", "handed from stage to stage", peak.handed_bytes, formula, "vLLM's intermediate tensors"
        )
    fixed = profiling.fixed_activation_bytes
    formula = f"{fixed.value / MIB:.0f} MiB"
    if model.num_vision_parameters:
        kept = profiling.multimodal_hidden_copies.value
        formula += f" + {kept:.2f} x {tokens:,} tokens x {model.hidden_size:,} x 2 bytes for the vision tower"
    yield Line("activations", "buffers", peak.lasting_bytes, formula, fixed.source)


def _non_torch(engine: ResolvedEngine, used: Consumption, profiling: ProfilingParameters) -> Line:
    tp, pp = engine.tensor_parallel_size, engine.pipeline_parallel_size
    fitted, extra = profiling.non_torch_for(tp, pp, linked=used.is_linked), profiling.unlinked_gpu_bytes
    buffers = ", NCCL and all-reduce buffers" if fitted is profiling.non_torch_parallel_bytes else ""
    formula, source = f"CUDA context and kernels{buffers}: {fitted.value / MIB:.0f} MiB", fitted.source
    if extra.value and not used.is_linked:
        formula += f" + {extra.value / MIB:.0f} MiB on GPUs without a fast link"
        source += f"; {extra.source}"
    return Line("non-torch", "outside PyTorch", used.non_torch_bytes, formula, source)


def _graphs(engine: ResolvedEngine, used: Consumption) -> Iterator[Line]:
    """What is set aside for graphs, and what they take in the end: only the former reduces the KV cache."""
    graphs = used.graphs
    if graphs.model == "design":
        yield Line(
            "CUDA graphs", "design", graphs.subtracted_bytes, _design_formula(used), "the original design document"
        )
    elif engine.subtracts_graph_memory:
        formula, source = _estimate_formula(used)
        yield Line("CUDA graphs", "estimate", graphs.subtracted_bytes, formula, source)
    if graphs.model == "measured":
        formula, source = _taken_formula(used)
        yield Line("CUDA graphs taken", "after the cache", graphs.taken_bytes, formula, source)


def _design_formula(used: Consumption) -> str:
    ratio = DESIGN.graph_memory_overhead_base_ratio * DESIGN.compilation_memory_multiplier
    scaling = DESIGN.graph_memory_batch_scaling_factor
    return f"each captured size: {used.weights_bytes / GIB:.2f} GiB of weights x {ratio:g} x (1 + {scaling:g} x size)"


def _estimate_formula(used: Consumption) -> tuple[str, str]:
    """Formula and source."""
    parameters = memory_parameters().graphs_estimated
    terms = _per_layer(used, parameters.per_layer_bytes, parameters.per_expert_layer_bytes, "MiB", MIB)
    formula = f"{_counts(used)} x ({parameters.per_graph_bytes.value / MIB:.2f} MiB + {terms})"
    return formula, parameters.per_graph_bytes.source


def _taken_formula(used: Consumption) -> tuple[str, str]:
    """Formula and source."""
    parameters = memory_parameters().graphs_taken
    per_layer, per_expert = parameters.per_token_and_layer_bytes, parameters.per_token_and_expert_layer_bytes
    terms = _per_layer(used, per_layer, per_expert, "bytes", 1)
    fixed = f"{_counts(used)} x {parameters.per_graph_bytes.value / MIB:.2f} MiB"
    return (
        f"{fixed} + {used.graphs.captured.num_tokens:,} captured tokens x ({terms})",
        parameters.per_graph_bytes.source,
    )


def _counts(used: Consumption) -> str:
    return f"({len(used.graphs.captured.piecewise)} piecewise + {len(used.graphs.captured.full)} full)"


def _per_layer(used: Consumption, per_layer: Fitted, per_expert: Fitted, unit: str, unit_bytes: int) -> str:
    num_layers, num_expert_layers = used.graphs.layers
    text = f"{num_layers} layers x {per_layer.value / unit_bytes:.4g} {unit}"
    if num_expert_layers:
        text += f" + {num_expert_layers} with experts x {per_expert.value / unit_bytes:.4g} {unit}"
    return text


def _kv_cache(layout: KVCacheLayout, num_blocks: int) -> Line:
    formula = f"{num_blocks:,} blocks x {layout.bytes_per_block / MIB:g} MiB; {_groups(layout.groups)}"
    return Line("KV cache", "blocks", num_blocks * layout.bytes_per_block, formula, "vLLM's KV cache groups")


def _groups(groups: tuple[KVGroup, ...]) -> str:
    return " + ".join(
        f"{group.num_layers} {group.kind} layers x {group.page_bytes:,} bytes{_drafting(group)} for {group.block_size} tokens"
        for group in dict.fromkeys(groups)
    )


def _drafting(group: KVGroup) -> str:
    return f" + {group.drafter_bytes:,} of the drafter" if group.drafter_bytes else ""
