"""Layer-wise CPU offload: the KV cache of a long request lives in pinned CPU memory, a few layers at a time on the GPU.

The plan is that of nano-vllm's layer-wise offload: a ring of KV buffers holds the layers being computed, a buffer of one
block a layer collects what is decoded, prefill runs the whole prompt through one layer after the other. What a layer
allocates is counted while it lives: a norm's fp32 copy is freed before attention's tensors, those before the feed-forward's.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from sim.errors import ConfigError, nearest
from sim.memory.weights import Part
from sim.specs.model import Linear, ModelSpec, ceil_div

FP32_BYTES, INT32_BYTES, INT64_BYTES = 4, 4, 8


@dataclass(frozen=True, slots=True)
class LayerwiseWidths:
    """The shape that sizes follow from, under the names of a Hugging Face config."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_layers: int
    max_position: int
    dtype_size: int = 2
    has_qk_norms: bool = False

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class Savings:
    """What the analysis of nano-vllm proposes, each for itself.

    `kv_joined`: k_full and v_full, in which a decode joins what was prefilled with what it adds, are allocated once instead of by
    every layer. `lengths_kept`: the two numbers that tell attention the length are, too. `rope_in_place`: rotating queries and
    keys takes no fp32 copies. `mlp_chunk_tokens`: the feed-forward takes so many tokens at a time.
    """

    kv_joined: bool = False
    lengths_kept: bool = False
    rope_in_place: bool = False
    mlp_chunk_tokens: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Savings":
        """Those named with commas in between, as in `rope_in_place,mlp_chunk_tokens=4096`, or `all`. Raises ConfigError."""
        if text == "all":
            return ALL_SAVINGS
        named = dict.fromkeys(part.strip().replace("-", "_") for part in text.split(","))
        chosen: dict[str, Any] = dict(map(_saving, named))
        return cls(**chosen)


CHUNK_TOKENS = 8192  # at a time in a feed-forward that is cut, where nobody says how many
ALL_SAVINGS = Savings(kv_joined=True, lengths_kept=True, rope_in_place=True, mlp_chunk_tokens=CHUNK_TOKENS)


def _saving(text: str) -> tuple[str, bool | int]:
    """A name and its value."""
    name, is_counted, count = text.partition("=")
    known = [entry.name for entry in fields(Savings)]
    if name not in known:
        raise ConfigError(f"--savings are {', '.join(known)} or all, got {name!r}.{nearest(name, known)}")
    if not is_counted:
        return name, getattr(ALL_SAVINGS, name)
    if name != "mlp_chunk_tokens" or not count.isdecimal() or not int(count):
        raise ConfigError(f"--savings has a number of at least 1 for mlp_chunk_tokens alone, got {text!r}.")
    return name, int(count)


@dataclass(frozen=True, slots=True)
class LayerwiseSettings:
    """How long the request is, and how the buffers are cut: blocks of `block_size` tokens, `num_kv_buffers` in the ring.

    `num_cpu_blocks` pinned blocks hold the request, as many as it has where None.
    """

    seq_len: int
    block_size: int = 1024
    num_kv_buffers: int = 4
    num_cpu_blocks: int | None = None
    savings: Savings = Savings()

    def __post_init__(self) -> None:
        needed = ceil_div(self.seq_len, self.block_size)
        if self.num_cpu_blocks is not None and self.num_cpu_blocks < needed:
            raise ConfigError(
                f"num_cpu_blocks must hold the request: {self.seq_len:,} tokens take {needed:,} blocks of {self.block_size:,}, "
                f"got {self.num_cpu_blocks:,}."
            )

    @property
    def pinned_blocks(self) -> int:
        return self.num_cpu_blocks or ceil_div(self.seq_len, self.block_size)


@dataclass(frozen=True, slots=True)
class LayerwisePlan:
    """Parts in bytes; `prefill_temporaries` and `decode_temporaries` hold what lives at each one's peak."""

    weights_bytes: int
    rotary_table: Part
    preallocated: tuple[Part, ...]
    cpu: tuple[Part, ...]
    prefill_persistent: tuple[Part, ...]
    prefill_temporaries: tuple[Part, ...]
    decode_temporaries: tuple[Part, ...]

    @property
    def preallocated_bytes(self) -> int:
        """Ring buffer and decode buffer on the GPU."""
        return total(self.preallocated)

    @property
    def cpu_bytes(self) -> int:
        """Pinned CPU memory."""
        return total(self.cpu)

    @property
    def prefill_peak_bytes(self) -> int:
        return total(self.prefill_temporaries)

    @property
    def decode_peak_bytes(self) -> int:
        return total(self.decode_temporaries)

    @property
    def prefill_bytes(self) -> int:
        """What the GPU holds at prefill's peak."""
        return self._loaded_bytes + total(self.prefill_persistent) + self.prefill_peak_bytes

    @property
    def decode_bytes(self) -> int:
        """What the GPU holds at a decode's peak."""
        return self._loaded_bytes + self.decode_peak_bytes

    @property
    def gpu_bytes(self) -> int:
        """What the GPU must have."""
        return max(self.prefill_bytes, self.decode_bytes)

    @property
    def _loaded_bytes(self) -> int:
        return self.weights_bytes + self.rotary_table.num_bytes + self.preallocated_bytes


def total(parts: tuple[Part, ...]) -> int:
    return sum(part.num_bytes for part in parts)


def layerwise_widths(model: ModelSpec) -> LayerwiseWidths:
    """Raises ConfigError for a model that is no stack of equal dense layers with full attention."""
    layer = model.layers[0]
    if len(model.distinct_layers) > 1 or layer.experts or layer.attention.kind != "full":
        raise ConfigError(
            f"layer-wise offload is planned for stacks of equal dense layers with full attention, which {model.name} is "
            "not; leave --offload out."
        )
    return LayerwiseWidths(
        hidden_size=model.hidden_size,
        num_heads=layer.attention.num_heads,
        num_kv_heads=layer.attention.num_kv_heads,
        head_dim=layer.attention.head_dim,
        intermediate_size=_named(layer.linears, "down_proj", model).in_features,
        num_layers=model.num_layers,
        max_position=model.max_model_len,
        dtype_size=model.dtype_bytes,
        has_qk_norms=layer.num_other_parameters > 2 * model.hidden_size,  # more than the layer's two norms
    )


def _named(linears: tuple[Linear, ...], name: str, model: ModelSpec) -> Linear:
    found = [linear for linear in linears if linear.name == name]
    if not found:
        raise ConfigError(f"layer-wise offload needs a gated feed-forward with {name}, which {model.name} lacks.")
    return found[0]


def layerwise_plan(widths: LayerwiseWidths, settings: LayerwiseSettings, weights_bytes: int) -> LayerwisePlan:
    """`weights_bytes` are those on the GPU, without the table of rotary positions."""
    return LayerwisePlan(
        weights_bytes=weights_bytes,
        rotary_table=_rotary_table(widths),
        preallocated=_gpu_buffers(widths, settings),
        cpu=(_cpu_cache(widths, settings),),
        prefill_persistent=_persistent(widths, settings),
        prefill_temporaries=max((stage(widths, settings) for stage in PREFILL_STAGES), key=total),
        decode_temporaries=_decode(widths, settings),
    )


class Saved(NamedTuple):
    """Bytes by which a saving lowers the peaks of a prefill and of a decode, and what a decode's layers allocate one after
    the other; below zero where it raises them.
    """

    prefill_bytes: int
    decode_bytes: int
    allocated_bytes: int


def saved(widths: LayerwiseWidths, settings: LayerwiseSettings) -> dict[str, Saved]:
    """What each saving that is not taken yet would save beside those that are, by its name; all of them as `all`."""
    taken = settings.savings
    left = [entry.name for entry in fields(Savings) if not getattr(taken, entry.name)]
    trials = {name: replace(taken, **{name: getattr(ALL_SAVINGS, name)}) for name in left}
    if left:
        trials["all"] = replace(taken, **{name: getattr(ALL_SAVINGS, name) for name in left})
    now = _figures(widths, settings)
    return {
        name: Saved(*np.subtract(now, _figures(widths, replace(settings, savings=savings))).tolist())
        for name, savings in trials.items()
    }


def _figures(widths: LayerwiseWidths, settings: LayerwiseSettings) -> Saved:
    plan = layerwise_plan(widths, settings, 0)
    return Saved(plan.prefill_bytes, plan.decode_bytes, widths.num_layers * plan.decode_peak_bytes)


def _rotary_table(w: LayerwiseWidths) -> Part:
    formula = f"{w.max_position:,} positions x {w.head_dim} x {FP32_BYTES} bytes"
    return Part("rotary table", w.max_position * w.head_dim * FP32_BYTES, formula)


def _gpu_buffers(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    ring = 2 * s.num_kv_buffers * s.seq_len * w.kv_dim * w.dtype_size
    decode = 2 * w.num_layers * s.block_size * w.kv_dim * w.dtype_size
    token = f"{w.kv_dim:,} x {w.dtype_size} bytes"
    joined, lengths = _joined(w, s) if s.savings.kv_joined else (), (_LENGTHS,) if s.savings.lengths_kept else ()
    return (
        *joined,
        *lengths,
        Part("ring buffer", ring, f"K and V x {s.num_kv_buffers} buffers x {s.seq_len:,} tokens x {token}"),
        Part("decode buffer", decode, f"K and V x {w.num_layers} layers x {s.block_size:,} tokens x {token}"),
    )


def _cpu_cache(w: LayerwiseWidths, s: LayerwiseSettings) -> Part:
    num_bytes = 2 * w.num_layers * s.pinned_blocks * s.block_size * w.kv_dim * w.dtype_size
    blocks = f"{s.pinned_blocks:,} blocks x {s.block_size:,} tokens"
    formula = f"K and V x {w.num_layers} layers x {blocks} x {w.kv_dim:,} x {w.dtype_size} bytes"
    return Part("pinned KV cache", num_bytes, formula)


def _persistent(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """What lives through all layers of a prefill."""
    ids = Part("token ids and positions", 2 * s.seq_len * INT64_BYTES, f"2 x {s.seq_len:,} x {INT64_BYTES} bytes")
    return ids, _tensor("hidden states", w.hidden_size, w, s), _tensor("residual", w.hidden_size, w, s)


def _norm(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At a layer's norm: an fp32 copy of the hidden states and their variance beside the result."""
    return (
        _tensor("normed hidden states", w.hidden_size, w, s),
        _in_fp32("norm in fp32", w.hidden_size + 1, s),
    )


def _head_norms(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At the norm of the queries' heads, in models that have one."""
    copy = _in_fp32("query norm in fp32", w.num_heads * (w.head_dim + 1), s) if w.has_qk_norms else None
    return _projected(w, s) + ((copy,) if copy else ())


def _attention(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At the rotary embedding: three fp32 copies of queries and keys beside the projection they come from."""
    rotated = (w.num_heads + w.num_kv_heads) * w.head_dim
    copies = () if s.savings.rope_in_place else (_in_fp32("rotary temporaries", rotated, s, copies=3),)
    return _projected(w, s) + copies


def _projected(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    return _tensor("normed hidden states", w.hidden_size, w, s), _tensor("qkv", w.qkv_size, w, s)


def _feed_forward(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At the gated activation: gate_up, the largest temporary of all, beside its activated half."""
    chunk = min(s.seq_len, s.savings.mlp_chunk_tokens or s.seq_len)
    return (
        _tensor("normed hidden states", w.hidden_size, w, s),
        _tensor("gate_up", 2 * w.intermediate_size, w, s, chunk),
        _tensor("activation", w.intermediate_size, w, s, chunk),
    )


PREFILL_STAGES = (_norm, _head_norms, _attention, _feed_forward)
_LENGTHS = Part("cu_seqlens_k", 2 * INT32_BYTES, f"2 x {INT32_BYTES} bytes")


def _decode(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """Each layer joins what was prefilled with what was decoded, and says how long that is."""
    return (() if s.savings.kv_joined else _joined(w, s)) + (() if s.savings.lengths_kept else (_LENGTHS,))


def _joined(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    return _tensor("k_full", w.kv_dim, w, s), _tensor("v_full", w.kv_dim, w, s)


def _tensor(name: str, width: int, w: LayerwiseWidths, s: LayerwiseSettings, num_tokens: int | None = None) -> Part:
    rows = num_tokens or s.seq_len
    return Part(name, rows * width * w.dtype_size, f"{rows:,} tokens x {width:,} x {w.dtype_size} bytes")


def _in_fp32(name: str, width: int, s: LayerwiseSettings, copies: int = 1) -> Part:
    times = f" x {copies}" if copies > 1 else ""
    return Part(
        name, s.seq_len * width * FP32_BYTES * copies, f"{s.seq_len:,} tokens x {width:,} x {FP32_BYTES} bytes{times}"
    )
