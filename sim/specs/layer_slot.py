"""One layer being described: the config it is read from, its place in the stack and how its weights are quantised."""

from dataclasses import dataclass
from typing import Literal

from sim.specs.hf_config import HFConfig
from sim.specs.model import Linear, Split, WeightFormat
from sim.specs.quantization import Quantization

QKNorm = Literal["none", "head", "full"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model_type fixes beyond its config's keys, as transformers' and vLLM's model classes have it.

    `qkv_bias` and `o_bias` follow the config's `attention_bias` where None. `qk_norm` is over each head ("head") or the
    whole projection ("full"). The `_module`s are named as checkpoints name them, for quantisation ignore lists.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: QKNorm = "none"
    qk_norm_key: str | None = None  # the flag that switches the norm on, where it is optional
    norms_per_layer: int = 2
    attention_sinks: bool = False
    attention_output_gate: bool = False
    dense_module: str = "mlp"
    moe_module: str = "mlp"
    shared_module: str = "shared_experts"
    num_shared_experts: int = 0  # where the config does not say
    expert_bias: bool = False  # and a router bias with it
    correction_bias: bool = False
    shared_expert_gate: bool = False
    gated_mlp: bool = True
    parallel_dense_mlp: bool = False  # a dense MLP beside the experts in every layer
    full_attention_interval: int | None = None  # every n-th layer attends fully where the config does not list them
    windowed_kind: Literal["sliding_attention", "chunked_attention", "linear_attention"] = "sliding_attention"
    slides_by_default: bool = True  # whether `sliding_window` counts without `use_sliding_window`
    tied_by_default: bool = False
    approximation: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Layer `index` of the model that `config` describes."""

    config: HFConfig
    traits: Traits
    quantization: Quantization
    index: int

    @property
    def hidden_size(self) -> int:
        return self.config.size("hidden_size")

    def linear(
        self, name: str, module: str, in_features: int, out_features: int, split: Split, *, bias: bool = False
    ) -> Linear:
        """A fused matrix; `module` is the checkpoint's name of (one of) its parts, below the layer."""
        return Linear(name, in_features, out_features, split, bias, self.format_of(module))

    def format_of(self, module: str) -> WeightFormat:
        """How the checkpoint stores that module of this layer."""
        return self.quantization.format_of(f"model.layers.{self.index}.{module}")
