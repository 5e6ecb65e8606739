"""The kernels whose time depends on nothing but how many tokens a step computes: matrices, experts, adapters, norms, all-reduces."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TypeVar

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Layer, ModelSpec
from sim.specs.quantization import FP8
from sim.specs.releases import parse_version
from sim.specs.stages import Stage, whole
from sim.steptime.all_to_all import gathered_s
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.experts_work import ExpertsWork
from sim.steptime.links import all_reduce_s
from sim.steptime.lora import LoraWork
from sim.steptime.operators import ACTIVATION_BYTES, Kernel, elementwise_s, served_gemm
from sim.steptime.parts import Bound

KeyT = TypeVar("KeyT")
TimesKernels = Callable[[int], list[tuple[str, Bound, float]]]
"""By the number of tokens, each kernel's name, bound and seconds."""

NORM_ACCESSES = 4  # a norm fused with the residual's addition reads and writes both
FIRST_NORMS = 1  # the embedding, taken as a norm
LAST_NORMS = 2  # the last norm and the choice of sampled rows, taken as one as well
ATTENTION_LAUNCHES = 2  # the KV write and attention itself, which piecewise graphs leave out
BEHIND_ATTENTION = ("o_proj", "out_proj", "o_a_proj")
FUSES_SINCE = (0, 10, 0)
"""torch.compile makes one kernel of a norm or an activation and what quantises behind it, of which vLLM made an operation that it can see
into (QuantFP8, vllm-project/vllm #21069 turns it off by name). Scales of blocks keep a kernel of their own (vLLM's config/vllm.py, #25094)."""
ELEMENTWISE_LAUNCHES = 4  # two norms, rope, activation
EXPERTS_LAUNCHES = 6  # routing, permutation, two grouped multiplications, activation, sum
SQUARES_BYTES = 2 * 4  # a token's mean squares in fp32, of its queries and of its keys


class TokenWork:
    """One GPU's share of a pipeline stage, kernel by kernel; equal kernels are timed once and multiplied.

    Of data-parallel ranks, kernels of experts are those of the tokens of all ranks.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        engine: ResolvedEngine,
        expert_routing: ExpertRouting = "skewed",
        lora: LoraWork | None = None,
        stage: Stage | None = None,
    ) -> None:
        tensor_parallel_size = engine.tensor_parallel_size
        stage = stage or whole(model)
        distinct_layers, num_layers = stage.distinct_layers(model), stage.stop - stage.start
        layers = [(layer.per_rank(tensor_parallel_size), count) for layer, count in distinct_layers.items()]
        norm = norm_bytes(model)
        self._gpu = gpu
        self._fuses = not engine.enforce_eager and parse_version(engine.vllm_version) >= FUSES_SINCE
        self._num_gpus = tensor_parallel_size
        self._message_bytes = ACTIVATION_BYTES * model.hidden_size
        self._num_gathers = _num_gathers(distinct_layers, engine)
        self._num_all_reduces = stage.is_first + 2 * num_layers if tensor_parallel_size > 1 else 0
        self._num_all_reduces -= self._num_gathers
        self._num_squares = sum(_shares_norms(layer, tensor_parallel_size) * n for layer, n in layers)
        self._linears = _count((linear, n) for layer, n in layers for linear in layer.linears)
        self._experts = ExpertsWork(distinct_layers, gpu, engine, expert_routing)
        self._num_ranks = engine.data_parallel_size
        self._elementwise = _count(
            (moved_bytes, n)
            for layer, n in layers
            for moved_bytes in (norm, norm, *qk_norm_bytes(layer), rope_bytes(layer), *activation_bytes(layer))
        )
        self._elementwise[norm] += FIRST_NORMS * stage.is_first + LAST_NORMS * stage.is_last
        self._lora = lora
        self.kernels = cache(self._time_kernels)
        self.matrices: TimesKernels = cache(self._time_matrices)
        self.experts = cache(self._experts.kernels)
        self.routed = cache(self._experts.routed)
        self.exchange = cache(self._experts.exchange)
        self.own_s = cache(self._time_own)
        self.experts_s = cache(self._time_experts)
        self.num_launches = sum(_num_launches(layer, tensor_parallel_size) * n for layer, n in layers)
        self.num_launches += lora.num_launches if lora else 0
        self.num_exchanging_layers = self._experts.num_exchanging_layers
        self.num_launches += 2 * self.num_exchanging_layers
        self.num_piecewise_launches = (ATTENTION_LAUNCHES + 1) * num_layers  # one graph between two attentions
        self.num_layers = num_layers

    def seconds_by_operator(self, num_tokens: int) -> dict[str, float]:
        """Seconds of each kind of kernel over all layers, without attention and the output head; all ranks have as many tokens."""
        seconds: defaultdict[str, float] = defaultdict(float)
        for operator, _, kernel_s in self.kernels(num_tokens):
            seconds[operator] += kernel_s
        return dict(seconds)

    def _time_kernels(self, num_tokens: int) -> list[tuple[str, Bound, float]]:
        """Each different kernel's name, bound and seconds over all layers, without attention and the output head."""
        num_all_tokens = self._num_ranks * num_tokens
        lora = self._lora.kernels(num_tokens, num_all_tokens) if self._lora else []
        return [*self.matrices(num_tokens), *self.experts(num_all_tokens), *self._others(num_tokens, lora)]

    def own_kernels(self, num_tokens: int) -> list[tuple[str, Bound, float]]:
        """All but those of experts."""
        lora = self._lora.own_kernels(num_tokens) if self._lora else []
        return [*self.matrices(num_tokens), *self._others(num_tokens, lora)]

    def _time_own(self, num_tokens: int) -> float:
        """Seconds of those."""
        return sum(seconds for _, _, seconds in self.own_kernels(num_tokens))

    def _time_experts(self, num_all_tokens: int) -> float:
        """Seconds of those of experts, with their adapters and what ranks exchange for them."""
        experts_s = sum(seconds for _, _, seconds in self.experts(num_all_tokens))
        return experts_s + self._lora.experts_s(num_all_tokens) if self._lora else experts_s

    def _time_matrices(self, num_tokens: int) -> list[tuple[str, Bound, float]]:
        found: list[tuple[str, Bound, float]] = []
        for linear, count in self._linears.items():
            is_fused = self._fuses and linear.weight.name == FP8.name and not linear.name.endswith(BEHIND_ATTENTION)
            seconds, bound = served_gemm(float(num_tokens), linear, self._gpu, is_fused=is_fused)
            found.append((linear.name, bound, count * seconds))
        return found

    def _others(self, num_tokens: int, lora: list[Kernel]) -> list[tuple[str, Bound, float]]:
        gpu, rows = self._gpu, float(num_tokens)
        found: list[tuple[str, Bound, float]] = [("lora", kernel.bound, kernel.seconds) for kernel in lora]
        for moved_bytes, count in self._elementwise.items():
            found.append(("elementwise", "memory", count * elementwise_s(rows * moved_bytes, gpu)))
        if self._num_all_reduces:
            message_s = all_reduce_s(rows * self._message_bytes, self._num_gpus, gpu)
            found.append(("all_reduce", "link", self._num_all_reduces * message_s))
        if self._num_squares:
            squares_s = all_reduce_s(rows * SQUARES_BYTES, self._num_gpus, gpu)
            found.append(("all_reduce", "link", self._num_squares * squares_s))
        if self._num_gathers:
            message_s = gathered_s(rows * self._message_bytes, self._num_gpus, gpu)
            found.append(("all_gather", "link", self._num_gathers * message_s))
        return found


def _num_gathers(layers: Mapping[Layer, int], engine: ResolvedEngine) -> int:
    """Layers whose ranks split their tokens before experts and gather them behind, instead of a sum (sequence-parallel experts)."""
    splits = engine.enable_expert_parallel and engine.tensor_parallel_size > 1 and engine.data_parallel_size > 1
    return sum(count for layer, count in layers.items() if layer.experts) if splits else 0


def _count(pairs: Iterable[tuple[KeyT, int]]) -> Counter[KeyT]:
    counter: Counter[KeyT] = Counter()
    for key, count in pairs:
        counter[key] += count
    return counter


def norm_bytes(model: ModelSpec) -> int:
    """What a norm reads and writes per token."""
    return NORM_ACCESSES * ACTIVATION_BYTES * model.hidden_size


def rope_bytes(layer: Layer) -> int:
    """What rotary embeddings read and write per token."""
    attention = layer.attention
    return ACTIVATION_BYTES * 2 * (attention.num_heads + attention.num_kv_heads) * attention.head_dim


def qk_norm_bytes(layer: Layer) -> list[int]:
    """What norms over all heads move per token: one kernel squares queries and keys, another scales them."""
    rope = rope_bytes(layer)
    return [rope // 2, rope] if layer.attention.norms_all_heads else []


def _shares_norms(layer: Layer, tensor_parallel_size: int) -> bool:
    return layer.attention.norms_all_heads and tensor_parallel_size > 1


def activation_bytes(layer: Layer) -> list[int]:
    """What each activation reads and writes per token; experts' own is part of their time."""
    gates = [linear.out_features for linear in layer.linears if "up_proj" in linear.name]
    return [ACTIVATION_BYTES * 3 * gate // 2 for gate in gates]


def _num_launches(layer: Layer, tensor_parallel_size: int) -> int:
    """Kernels that the host launches for one layer where no CUDA graph does."""
    all_reduces = 2 if tensor_parallel_size > 1 else 0
    experts = EXPERTS_LAUNCHES if layer.experts else 0
    norms = len(qk_norm_bytes(layer)) + _shares_norms(layer, tensor_parallel_size)
    return len(layer.linears) + ATTENTION_LAUNCHES + ELEMENTWISE_LAUNCHES + all_reduces + experts + norms
