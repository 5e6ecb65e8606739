"""What is loaded before anything runs: weights by part, and the table of rotary positions."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.lora import AdapterLayout
from sim.specs.model import Experts, Layer, ModelSpec, ceil_div
from sim.specs.mxfp4 import MXFP4, Mxfp4Layout
from sim.specs.sharding import layer_on_rank
from sim.specs.stages import Stage
from sim.specs.weight_offload import offloaded

FP32_BYTES = 4


class Part(NamedTuple):
    """Bytes on one GPU and in words how they come about."""

    name: str
    num_bytes: int
    formula: str


def weight_parts(
    model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, stage: Stage, drafter: Drafter | None = None
) -> tuple[Part, ...]:
    """Everything that loading the model leaves on each GPU of a pipeline stage; a vision tower is loaded on all stages.

    The last stage loads the `drafter`.
    """
    parts = (
        _vocabulary(model, engine.tensor_parallel_size, stage),
        *_layers(model, gpu, engine, stage),
        _in_host_memory(model, engine, stage),
        _adapters(model, engine, stage),
        _vision(model, engine.tensor_parallel_size),
        _rotary_tables(model),
        *(
            (_drafter(drafter, engine, is_alone=model.lm_head is not None and not stage.is_first),)
            if drafter and stage.is_last
            else ()
        ),
    )
    return tuple(part for part in parts if part.num_bytes)


def _vocabulary(model: ModelSpec, tensor_parallel_size: int, stage: Stage) -> Part:
    """A tied embedding is loaded on the last stage too, as its head."""
    whole = [model.embedding] if stage.is_first else []
    whole += [model.output_head] if stage.is_last and (model.lm_head or not stage.is_first) else []
    ends = [end.per_rank(tensor_parallel_size) for end in whole]
    formula = " + ".join(
        f"{end.name}: {end.out_features:,} of {model.vocab_size:,} rows x {model.hidden_size:,}, {end.weight.name}"
        for end in ends
    )
    return Part("embedding and head", sum(end.num_bytes for end in ends), formula)


def _layers(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, stage: Stage) -> Iterator[Part]:
    mine = [(layer_on_rank(layer, engine), count) for layer, count in stage.distinct_layers(model).items()]
    dense = sum(count * sum(linear.num_bytes for linear in layer.linears) for layer, count in mine)
    experts = sum(count * experts_bytes(layer.experts, gpu, engine) for layer, count in mine if layer.experts)
    rest = sum(count * layer.num_other_parameters for layer, count in mine) + model.num_final_parameters * stage.is_last
    split = f"split over {engine.tensor_parallel_size}" if engine.tensor_parallel_size > 1 else "whole"
    yield Part("attention and dense layers", dense, f"{stage.stop - stage.start} layers, {_formats(mine)}, {split}")
    yield Part(
        "routed experts", experts, f"{_expert_layers(mine)}, {_expert_split(engine)}{_laid_out(mine, gpu, engine)}"
    )
    yield Part("norms and the rest", 2 * rest, f"{rest:,} x 2 bytes on every GPU")


def experts_bytes(mine: Experts, gpu: HardwareProfile, engine: ResolvedEngine) -> int:
    """One GPU's share of a layer's routed experts, as their kernel reads them."""
    if mine.weight.name != MXFP4:
        return mine.num_bytes
    return Mxfp4Layout.of(gpu, engine).num_bytes(mine)


def _laid_out(mine: list[tuple[Layer, int]], gpu: HardwareProfile, engine: ResolvedEngine) -> str:
    if not any(layer.experts and layer.experts.weight.name == MXFP4 for layer, _ in mine):
        return ""
    layout = Mxfp4Layout.of(gpu, engine)
    return f", in tiles of {layout.kernel}'s kernel" + ", scales twice" * layout.keeps_loaded_scales


def _in_host_memory(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> Part:
    """What leaves the GPU, without the buffers for layers on their way back."""
    found = offloaded(model, engine, stage)
    if found is None:
        return Part("in host memory", 0, "none")
    what = f"{len(found.copied)} layers" if found.copied else "the first matrices"
    buffers = f", but for {found.buffer_bytes:,} bytes of buffers" if found.buffer_bytes else ""
    return Part("in host memory", found.buffer_bytes - found.num_bytes, f"{what} of {found.num_bytes:,} bytes{buffers}")


def _adapters(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> Part:
    """Room for adapters, taken when the model is loaded whether or not there are any."""
    if not engine.enable_lora:
        return Part("LoRA adapters", 0, "none")
    num_bytes = adapter_bytes(model, engine, stage)
    formula = f"{engine.max_loras} x {num_bytes:,} bytes of rank {engine.max_lora_rank}"
    return Part("LoRA adapters", engine.max_loras * num_bytes, formula)


def adapter_bytes(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> int:
    """One adapter on each GPU of a stage, in the model's dtype."""
    layout = AdapterLayout.of(engine)
    ends = layout.vocabulary_pairs(model, is_first=stage.is_first, is_last=stage.is_last)
    layers = layout.pairs(stage.distinct_layers(model))
    num_parameters = sum(count * pair.num_parameters for pair, count in layers.items())
    return model.dtype_bytes * (num_parameters + sum(pair.num_parameters for pair in ends))


def _drafter(drafter: Drafter, engine: ResolvedEngine, *, is_alone: bool) -> Part:
    """Its layers, and what of embedding and head is its own, as the embedding is where it `is_alone` with none of the model's."""
    model, ranks = drafter.model, engine.tensor_parallel_size
    owns_embedding = drafter.owns_embedding or is_alone
    layers = sum(layer_on_rank(layer, engine).num_bytes for layer in model.layers)
    own = [model.embedding] * owns_embedding + [drafter.head] * drafter.owns_head
    ends = sum(end.per_rank(ranks).num_bytes for end in own)
    named = (
        " and ".join(("embedding",) * owns_embedding + ("head",) * drafter.owns_head) or "neither embedding nor head"
    )
    formula = f"{model.num_layers} layers x {model.hidden_size:,} hidden, {named} of its own"
    return Part("drafter", layers + ends + 2 * model.num_final_parameters, formula)


def _formats(mine: list[tuple[Layer, int]]) -> str:
    return " and ".join(sorted({linear.weight.name for layer, _ in mine for linear in layer.linears})) or "none"


def _expert_layers(mine: list[tuple[Layer, int]]) -> str:
    layers = sum(count for layer, count in mine if layer.experts)
    first = next((layer.experts for layer, _ in mine if layer.experts), None)
    return f"{layers} layers x {first.num_experts} experts, {first.weight.name}" if first else "none"


def _expert_split(engine: ResolvedEngine) -> str:
    ranks, copies = engine.num_expert_ranks, engine.num_redundant_experts
    if engine.enable_expert_parallel:
        return (
            "whole" + (f" of {ranks} GPUs'" if ranks > 1 else "") + (f", {copies} copies among all" if copies else "")
        )
    return f"split over {ranks}" if ranks > 1 else "whole"


def _vision(model: ModelSpec, tensor_parallel_size: int) -> Part:
    formula = f"{model.num_vision_parameters:,} x 2 bytes / {tensor_parallel_size}"
    return Part("vision tower", ceil_div(2 * model.num_vision_parameters, tensor_parallel_size), formula)


def _rotary_tables(model: ModelSpec) -> Part:
    """Cosines and sines for every position of the config, however short max_model_len is (vLLM pull request 44738).

    One table for each width of rotated heads, in the model's dtype; MLA models keep theirs in fp32.
    """
    rotated = (layer.attention for layer in model.layers if layer.attention.kind != "linear")
    widths = {(a.qk_rope_head_dim, FP32_BYTES) if a.kind == "mla" else (a.head_dim, model.dtype_bytes) for a in rotated}
    formula = " + ".join(f"{model.max_model_len:,} x {width} x {size} bytes" for width, size in sorted(widths))
    return Part("rotary tables", sum(model.max_model_len * width * size for width, size in widths), formula)
