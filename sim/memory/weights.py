"""What is loaded before anything runs: weights by part, and the table of rotary positions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from sim.specs.model import Layer, ModelSpec, ceil_div

FP32_BYTES = 4


class Part(NamedTuple):
    """Bytes on one GPU and in words how they come about."""

    name: str
    num_bytes: int
    formula: str


def weight_parts(model: ModelSpec, tensor_parallel_size: int) -> tuple[Part, ...]:
    """Everything that loading the model leaves on each GPU; vision tower included, multi-token prediction not."""
    parts = (
        _vocabulary(model, tensor_parallel_size),
        *_layers(model, tensor_parallel_size),
        _vision(model, tensor_parallel_size),
        _rotary_tables(model),
    )
    return tuple(part for part in parts if part.num_bytes)


def _vocabulary(model: ModelSpec, tensor_parallel_size: int) -> Part:
    ends = [end.per_rank(tensor_parallel_size) for end in (model.embedding, model.lm_head) if end]
    rows = ends[0].out_features
    formula = f"{len(ends)} x {rows:,} of {model.vocab_size:,} rows x {model.hidden_size:,}, {ends[0].weight.name}"
    return Part("embedding and head", sum(end.num_bytes for end in ends), formula)


def _layers(model: ModelSpec, tensor_parallel_size: int) -> Iterator[Part]:
    mine = [(layer.per_rank(tensor_parallel_size), count) for layer, count in model.distinct_layers.items()]
    dense = sum(count * sum(linear.num_bytes for linear in layer.linears) for layer, count in mine)
    experts = sum(count * layer.experts.num_bytes for layer, count in mine if layer.experts)
    rest = sum(count * layer.num_other_parameters for layer, count in mine) + model.num_final_parameters
    split = f"split over {tensor_parallel_size}" if tensor_parallel_size > 1 else "whole"
    yield Part("attention and dense layers", dense, f"{model.num_layers} layers, {_formats(mine)}, {split}")
    yield Part("routed experts", experts, f"{_expert_layers(mine)}, {split}")
    yield Part("norms and the rest", 2 * rest, f"{rest:,} x 2 bytes on every GPU")


def _formats(mine: list[tuple[Layer, int]]) -> str:
    return " and ".join(sorted({linear.weight.name for layer, _ in mine for linear in layer.linears}))


def _expert_layers(mine: list[tuple[Layer, int]]) -> str:
    layers = sum(count for layer, count in mine if layer.experts)
    first = next((layer.experts for layer, _ in mine if layer.experts), None)
    return f"{layers} layers x {first.num_experts} experts, {first.weight.name}" if first else "none"


def _vision(model: ModelSpec, tensor_parallel_size: int) -> Part:
    formula = f"{model.num_vision_parameters:,} x 2 bytes / {tensor_parallel_size}"
    return Part("vision tower", ceil_div(2 * model.num_vision_parameters, tensor_parallel_size), formula)


def _rotary_tables(model: ModelSpec) -> Part:
    """Cosines and sines for every position of the config, however short max_model_len is (vLLM pull request 44738).

    One table for each width of rotated heads, in the model's dtype; MLA models keep theirs in fp32.
    """
    attentions = {replace(layer.attention, window=None) for layer in model.layers if layer.attention.kind != "linear"}
    widths = {
        (a.qk_rope_head_dim, FP32_BYTES) if a.kind == "mla" else (a.head_dim, model.dtype_bytes) for a in attentions
    }
    formula = " + ".join(f"{model.max_model_len:,} x {width} x {size} bytes" for width, size in sorted(widths))
    return Part("rotary tables", sum(model.max_model_len * width * size for width, size in widths), formula)
