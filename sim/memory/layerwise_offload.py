"""Layer-wise CPU offload: the KV cache of a long request lives in pinned CPU memory, a few layers at a time on the GPU.

The plan is that of nano-vllm's layer-wise offload: a ring of KV buffers holds the layers being computed, a buffer of one
block a layer collects what is decoded, prefill runs the whole prompt through one layer after the other. What a layer
allocates is counted while it lives: attention's tensors are freed before the feed-forward's peak.
"""

from dataclasses import dataclass

from sim.errors import ConfigError
from sim.memory.weights import Part
from sim.specs.model import Linear, ModelSpec, ceil_div

FP32_BYTES, INT64_BYTES = 4, 8


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

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class LayerwiseSettings:
    """How long the request is, and how the buffers are cut: blocks of `block_size` tokens, `num_kv_buffers` in the ring."""

    seq_len: int
    block_size: int = 1024
    num_kv_buffers: int = 4

    @property
    def num_cpu_blocks(self) -> int:
        return ceil_div(self.seq_len, self.block_size)


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
    def gpu_bytes(self) -> int:
        """What the GPU must hold at prefill's peak; decode's is lower, as qkv alone is larger than k_full and v_full."""
        loaded = self.weights_bytes + self.rotary_table.num_bytes + self.preallocated_bytes
        return loaded + total(self.prefill_persistent) + self.prefill_peak_bytes


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
        prefill_temporaries=max(_attention(widths, settings), _feed_forward(widths, settings), key=total),
        decode_temporaries=_decode(widths, settings),
    )


def _rotary_table(w: LayerwiseWidths) -> Part:
    formula = f"{w.max_position:,} positions x {w.head_dim} x {FP32_BYTES} bytes"
    return Part("rotary table", w.max_position * w.head_dim * FP32_BYTES, formula)


def _gpu_buffers(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    ring = 2 * s.num_kv_buffers * s.seq_len * w.kv_dim * w.dtype_size
    decode = 2 * w.num_layers * s.block_size * w.kv_dim * w.dtype_size
    token = f"{w.kv_dim:,} x {w.dtype_size} bytes"
    return (
        Part("ring buffer", ring, f"K and V x {s.num_kv_buffers} buffers x {s.seq_len:,} tokens x {token}"),
        Part("decode buffer", decode, f"K and V x {w.num_layers} layers x {s.block_size:,} tokens x {token}"),
    )


def _cpu_cache(w: LayerwiseWidths, s: LayerwiseSettings) -> Part:
    num_bytes = 2 * w.num_layers * s.num_cpu_blocks * s.block_size * w.kv_dim * w.dtype_size
    blocks = f"{s.num_cpu_blocks:,} blocks x {s.block_size:,} tokens"
    formula = f"K and V x {w.num_layers} layers x {blocks} x {w.kv_dim:,} x {w.dtype_size} bytes"
    return Part("pinned KV cache", num_bytes, formula)


def _persistent(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """What lives through all layers of a prefill."""
    ids = Part("token ids and positions", 2 * s.seq_len * INT64_BYTES, f"2 x {s.seq_len:,} x {INT64_BYTES} bytes")
    return ids, _tensor("hidden states", w.hidden_size, w, s), _tensor("residual", w.hidden_size, w, s)


def _attention(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At the rotary embedding: three fp32 copies of queries and keys beside the projection they come from."""
    rotated = (w.num_heads + w.num_kv_heads) * w.head_dim
    rope = s.seq_len * rotated * FP32_BYTES * 3
    return (
        _tensor("normed hidden states", w.hidden_size, w, s),
        _tensor("qkv", w.qkv_size, w, s),
        Part("rotary temporaries", rope, f"{s.seq_len:,} tokens x {rotated:,} x {FP32_BYTES} bytes x 3"),
    )


def _feed_forward(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """At the gated activation: gate_up, the largest temporary of all, beside its activated half."""
    return (
        _tensor("normed hidden states", w.hidden_size, w, s),
        _tensor("gate_up", 2 * w.intermediate_size, w, s),
        _tensor("activation", w.intermediate_size, w, s),
    )


def _decode(w: LayerwiseWidths, s: LayerwiseSettings) -> tuple[Part, ...]:
    """Each layer joins what was prefilled with what was decoded."""
    return _tensor("k_full", w.kv_dim, w, s), _tensor("v_full", w.kv_dim, w, s)


def _tensor(name: str, width: int, w: LayerwiseWidths, s: LayerwiseSettings) -> Part:
    formula = f"{s.seq_len:,} tokens x {width:,} x {w.dtype_size} bytes"
    return Part(name, s.seq_len * width * w.dtype_size, formula)
