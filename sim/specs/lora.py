"""What a LoRA adapter adds to a model, as vLLM lays it out: two narrow matrices beside each of the model's own.

Mirrors vllm/lora/layers (0.33): a slot for an adapter has matrices of `max_lora_rank` beside every matrix, experts and router
included, whether or not the adapter has them. Matrices that vLLM fuses keep an A each, so that qkv_proj has three slices.
Without `fully_sharded_loras` tensor parallelism cuts only the side that the model's matrix is cut on.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sim.specs.engine import EngineConfig
from sim.specs.model import Experts, Layer, Linear, ModelSpec, ceil_div

ADAPTED_VOCABULARIES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "GraniteForCausalLM",
)
"""Architectures whose embedding and head take adapters too (`embedding_modules` of vLLM's model classes)."""


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """Room for `max_loras` adapters on the GPU and `max_cpu_loras` in host memory.

    It takes `copy_s` to bring one from there into a slot, and `read_s` before that where it has to come from storage; and `dummy_s` to make
    those of a dummy batch.
    """

    max_loras: int
    max_cpu_loras: int
    copy_s: float = 0.0
    read_s: float = 0.0
    dummy_s: float = 0.0


class AdapterPair(NamedTuple):
    """An adapter's A of `in_features` x `num_slices` x `rank_a` and B of `rank_b` x `out_features`, as one GPU holds them.

    There is one pair for each of `num_experts`, of which a token uses `num_used`; 1 and 1 beside a dense matrix. Beside experts it
    multiplies the tokens of all data-parallel ranks.
    """

    in_features: int
    out_features: int
    rank_a: int
    rank_b: int
    num_slices: int = 1
    num_experts: int = 1
    num_used: int = 1
    is_of_experts: bool = False

    @property
    def a_numbers(self) -> int:
        """Of one expert."""
        return self.num_slices * self.rank_a * self.in_features

    @property
    def b_numbers(self) -> int:
        """Of one expert."""
        return self.rank_b * self.out_features

    @property
    def num_parameters(self) -> int:
        return self.num_experts * (self.a_numbers + self.b_numbers)


class AdapterLayout(NamedTuple):
    """How adapters are laid out on each of the GPUs that share a layer, and on each of the `num_expert_ranks` that share its experts."""

    rank: int
    tensor_parallel_size: int
    num_expert_ranks: int
    is_fully_sharded: bool
    has_whole_experts: bool

    @classmethod
    def of(cls, engine: EngineConfig) -> "AdapterLayout":
        """As these arguments say."""
        return cls(
            engine.max_lora_rank,
            engine.tensor_parallel_size,
            engine.num_expert_ranks,
            engine.fully_sharded_loras,
            engine.enable_expert_parallel,
        )

    def layer_pairs(self, layer: Layer) -> Iterator[AdapterPair]:
        """Beside each matrix of a layer."""
        for linear in layer.linears:
            yield self.pair(linear)
        if layer.experts:
            yield from self._expert_pairs(layer.experts)

    def pairs(self, layers: Mapping[Layer, int]) -> Counter[AdapterPair]:
        """Beside the matrices of some layers, each with how often it occurs."""
        found: Counter[AdapterPair] = Counter()
        for layer, count in layers.items():
            for pair in self.layer_pairs(layer):
                found[pair] += count
        return found

    def vocabulary_pairs(self, model: ModelSpec, *, is_first: bool, is_last: bool) -> Iterator[AdapterPair]:
        """Beside the embedding and the head; the head's B has the whole vocabulary on each GPU."""
        if model.architecture in ADAPTED_VOCABULARIES:
            if is_first:
                yield AdapterPair(model.vocab_size, model.hidden_size, self.rank, self.rank)
            if is_last:
                yield AdapterPair(model.hidden_size, model.vocab_size, self.rank, self.rank)

    def pair(self, linear: Linear) -> AdapterPair:
        """Beside one matrix."""
        mine = linear.per_rank(self.tensor_parallel_size)
        num_slices = 3 if linear.kv_features else 2 if "gate_up" in linear.name else 1
        rank_a, num_out = self.rank, mine.out_features
        if self.is_fully_sharded and linear.split == "column":
            rank_a = ceil_div(self.rank, self.tensor_parallel_size)
        if self.is_fully_sharded and linear.split == "row":
            num_out = ceil_div(num_out, self.tensor_parallel_size)
        return AdapterPair(mine.in_features, num_out, rank_a, self.rank, num_slices)

    def _expert_pairs(self, experts: Experts) -> Iterator[AdapterPair]:
        """Gate and up are two slices. Every GPU has a slice of each expert, or some experts whole."""
        size, rank, hidden, width = self.num_expert_ranks, self.rank, experts.hidden_size, experts.intermediate_size
        rank_a, num_out, num_experts, num_used = rank, hidden, experts.num_experts, experts.num_experts_per_tok
        if self.has_whole_experts:
            num_experts, num_used = ceil_div(num_experts, size), ceil_div(num_used, size)
        else:
            width = ceil_div(width, size)
            if self.is_fully_sharded:
                rank_a, num_out = ceil_div(rank, size), ceil_div(hidden, size)
        num_slices = experts.num_matrices - 1
        yield AdapterPair(
            hidden, num_slices * width, rank_a, rank, num_slices, num_experts, num_used, is_of_experts=True
        )
        yield AdapterPair(width, num_out, rank, rank, 1, num_experts, num_used, is_of_experts=True)
