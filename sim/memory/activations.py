"""Peak memory of vLLM's profiling run beyond the weights, as a function of batch limits and widths.

The run is one forward pass of max_num_batched_tokens and one sampler pass over max_num_seqs rows of its hidden states. The higher
of the two counts, on top of what lives through both: the experts' workspace, what a vision tower adds, and the hidden states and
residual that stages of a pipeline hand on, for which vLLM keeps buffers of max_num_batched_tokens (make_empty_intermediate_tensors).
"""

from typing import NamedTuple

from sim.memory.parameters import ProfilingParameters
from sim.specs.engine import ResolvedEngine
from sim.specs.model import Experts, Layer, ModelSpec
from sim.specs.mxfp4 import MXFP4
from sim.specs.sharding import layer_on_rank
from sim.specs.stages import Stage

FP32_BYTES = 4
MOE_CHUNK_TOKENS = 16384  # vLLM's VLLM_FUSED_MOE_CHUNK_SIZE: more tokens go through fused experts in parts


class ActivationShape(NamedTuple):
    """Widths that decide a GPU's peak, in numbers a token; `logits` a row, 0 on a stage that does not sample, `handed` 0 without stages."""

    hidden: int
    logits: int
    layer: int
    experts: int
    multimodal: bool
    dtype_bytes: int
    num_ranks: int = 1
    handed: int = 0


class ActivationPeak(NamedTuple):
    """Bytes of each part; `total_bytes` is what vLLM logs as the activation peak. The sampler's are with the hidden states that it samples."""

    sampler_bytes: int
    layer_bytes: int
    experts_bytes: int
    lasting_bytes: int
    gathered_bytes: int = 0
    handed_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        passing_bytes = max(self.sampler_bytes, self.layer_bytes)
        return passing_bytes + self.experts_bytes + self.lasting_bytes + self.gathered_bytes + self.handed_bytes


def activation_shape(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> ActivationShape:
    """Logits are gathered on every GPU of the last stage; layers and experts are split."""
    mine = [layer_on_rank(layer, engine) for layer in stage.distinct_layers(model)]
    return ActivationShape(
        hidden=model.hidden_size,
        logits=model.output_head.per_rank(1).out_features if stage.is_last else 0,
        layer=max(layer_numbers_per_token(layer, model.hidden_size) for layer in mine),
        experts=max((workspace_numbers_per_token(layer.experts) for layer in mine if layer.experts), default=0),
        multimodal=model.num_vision_parameters > 0,
        dtype_bytes=model.dtype_bytes,
        num_ranks=engine.data_parallel_size if model.has_experts else 1,
        handed=2 * model.hidden_size if stage.size > 1 else 0,
    )


def layer_numbers_per_token(layer: Layer, hidden_size: int) -> int:
    """Residual, normed input and output beside the widest matrix's result and its activation, half as wide (gate_up)."""
    widest = max((linear.out_features for linear in layer.linears if linear.split == "column"), default=0)
    return 3 * hidden_size + 3 * widest // 2


def workspace_numbers_per_token(experts: Experts) -> int:
    """What vLLM's fused experts keep for each routed copy of a token: one buffer for gate_up and output, one for SwiGLU.

    The mxfp4 kernels fuse SwiGLU and the reduction over experts, and keep none.
    """
    if experts.weight.name == MXFP4:
        return 0
    gate_up = (experts.num_matrices - 1) * experts.intermediate_size
    return experts.num_experts_per_tok * (max(gate_up, experts.hidden_size) + experts.intermediate_size)


def activation_peak(
    shape: ActivationShape, max_num_batched_tokens: int, max_num_seqs: int, parameters: ProfilingParameters
) -> ActivationPeak:
    """With several ranks experts see the tokens of all, which are there before and behind them; they take so many at a time."""
    rows, num_all_tokens = min(max_num_seqs, max_num_batched_tokens), shape.num_ranks * max_num_batched_tokens
    at_a_time = max(max_num_batched_tokens, min(num_all_tokens, MOE_CHUNK_TOKENS))
    hidden_bytes = max_num_batched_tokens * shape.hidden * shape.dtype_bytes
    logits_bytes = parameters.sampler_logits_copies.value * rows * shape.logits * FP32_BYTES
    sampled_bytes = parameters.hidden_copies.value * hidden_bytes if shape.logits else 0.0
    multimodal_bytes = parameters.multimodal_hidden_copies.value * hidden_bytes * shape.multimodal
    return ActivationPeak(
        sampler_bytes=int(logits_bytes + sampled_bytes),
        layer_bytes=max_num_batched_tokens * shape.layer * shape.dtype_bytes,
        experts_bytes=at_a_time * shape.experts * shape.dtype_bytes,
        lasting_bytes=int(parameters.fixed_activation_bytes.value + multimodal_bytes),
        gathered_bytes=2 * num_all_tokens * shape.hidden * shape.dtype_bytes if shape.num_ranks > 1 else 0,
        handed_bytes=max_num_batched_tokens * shape.handed * shape.dtype_bytes,
    )
