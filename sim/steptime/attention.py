"""Attention of all layers together: decode as a function of the summed context, prefill chunk by chunk."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention, ModelSpec
from sim.steptime.operators import (
    DecodeAttention,
    PrefillWork,
    decode_attention,
    decode_attention_s,
    prefill_attention_s,
    prefill_work,
    riding_work,
)
from sim.steptime.protocol import FloatArray


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """Seconds of a decode step of a fixed number of requests, by the sum of their contexts.

    `layers` holds each kind of layer's attention with how many layers have it; `constant_s` is all that does not depend
    on contexts. The step takes at least `floor_s` (what the host needs meanwhile), and `after_s` more.
    """

    constant_s: float
    layers: tuple[tuple[int, DecodeAttention], ...]
    floor_s: float = 0.0
    after_s: float = 0.0

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        seconds = self.constant_s
        for count, work in self.layers:
            seconds += count * decode_attention_s(work, float(min(context_tokens, work.most_context_tokens)))
        return max(seconds, self.floor_s) + self.after_s

    def over(self, context_tokens: FloatArray) -> FloatArray:
        """`at` for many sums at once."""
        seconds = np.full(context_tokens.shape, self.constant_s)
        for count, work in self.layers:
            seconds += count * decode_attention_s(work, np.minimum(context_tokens, work.most_context_tokens))
        total: FloatArray = np.maximum(seconds, self.floor_s) + self.after_s
        return total


class AttentionWork:
    """The attention layers of a model as one GPU holds them; equal layers are timed once and multiplied."""

    def __init__(
        self, model: ModelSpec, gpu: HardwareProfile, tensor_parallel_size: int, kv_dtype_bytes: float
    ) -> None:
        self._gpu = gpu
        self._kv_dtype_bytes = kv_dtype_bytes
        self._layers: Counter[Attention] = Counter()
        for layer, count in model.distinct_layers.items():
            self._layers[layer.attention.per_rank(tensor_parallel_size)] += count
            if layer.attention.index_topk:
                self._layers[_indexer(layer.attention)] += count

    def decode(self, num_decodes: int) -> DecodeCurve:
        """Seconds of attention alone, by the decodes' summed context; a constant 0 without decodes."""
        if num_decodes == 0:
            return DecodeCurve(0.0, ())
        works = [
            (count, decode_attention(num_decodes, attention, self._kv_dtype_bytes, self._gpu))
            for attention, count in self._layers.items()
        ]
        return DecodeCurve(sum(count * work.fixed_s for count, work in works), tuple(works))

    def prefill_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Seconds for the chunks together, without launches."""
        return sum(
            count * prefill_attention_s(*self._prefill_work(chunks, attention), self._gpu)
            for attention, count in self._layers.items()
        )

    @property
    def decodes_ride_along(self) -> bool:
        """Whether decodes of a mixed step run in the kernel of its chunks, as in FlashAttention 2."""
        return self._gpu.operators.prefill_attention.decode_rows > 0

    def mixed_s(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Seconds for chunks and decodes in one kernel, without launches; a decode's row fills a tile of its own.

        Measured on RTX 4090 and RTX PRO 6000, where such calls take 1.5 times their parts apart.
        """
        fit, seconds = self._gpu.operators.prefill_attention, 0.0
        for attention, count in self._layers.items():
            chunk_work = self._prefill_work(chunks, attention)
            riding = riding_work(num_decodes, context_tokens, attention, self._kv_dtype_bytes, fit.decode_rows)
            work = PrefillWork(*(a + b for a, b in zip(chunk_work, riding, strict=True)))
            num_waves = num_decodes * attention.num_heads / self._gpu.num_sms
            seconds += count * (prefill_attention_s(*work, self._gpu) + fit.decode_wave_s * num_waves)
        return seconds

    def _prefill_work(self, chunks: tuple[tuple[int, int], ...], attention: Attention) -> PrefillWork:
        flops = num_tiles = moved_bytes = 0.0
        for num_tokens, num_computed in chunks:
            work = prefill_work(num_tokens, num_computed, attention, self._kv_dtype_bytes)
            flops += work.flops
            num_tiles += work.num_tiles
            moved_bytes += work.moved_bytes
        return PrefillWork(flops, num_tiles, moved_bytes)

    @property
    def prefill_launch_s(self) -> float:
        """What launching prefill attention costs over all layers; a kernel that decodes as well is launched once."""
        return self._layers.total() * self._gpu.operators.prefill_attention.launch_s


def _indexer(attention: Attention) -> Attention:
    """Sparse attention's choice of tokens reads one small key for each token of the context, on every GPU."""
    return replace(
        attention,
        kind="full",
        num_heads=1,
        num_kv_heads=1,
        head_dim=attention.index_head_dim,
        v_head_dim=0,
        index_topk=None,
    )
