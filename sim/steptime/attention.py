"""Attention of all layers together: decode as a function of the summed context, prefill chunk by chunk."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention, ModelSpec
from sim.specs.stages import Stage, whole
from sim.steptime.operators import DecodeAttention, decode_attention, decode_attention_s
from sim.steptime.parts import Bound
from sim.steptime.prefill import (
    mixed_attention_s,
    prefill_attention,
    prefill_attention_s,
    prefill_fit,
    prefill_speed,
    prefill_terms,
    prefill_work,
)
from sim.steptime.protocol import FloatArray, StepShape


class DecodeCurve:
    """Seconds of a decode step of a fixed number of requests, by the sum of their contexts.

    `layers` holds each kind of layer's attention with how many layers have it; `constant_s` is all that does not depend
    on contexts. The step takes at least `floor_s`; then comes what is `behind` it. A plain class, since ranks in lock step make many.
    """

    __slots__ = ("behind", "constant_s", "floor_s", "layers")

    def __init__(
        self,
        constant_s: float,
        layers: tuple[tuple[int, DecodeAttention], ...],
        floor_s: float = 0.0,
        behind: "DecodeCurve | None" = None,
    ) -> None:
        self.constant_s = constant_s
        self.layers = layers
        self.floor_s = floor_s
        self.behind = behind

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        seconds = self._by_itself(context_tokens)
        return seconds if self.behind is None else seconds + self.behind.at(context_tokens)

    def _by_itself(self, context_tokens: float) -> float:
        seconds = self.constant_s
        for count, work in self.layers:
            most = work.most_context_tokens
            read_tokens = context_tokens if most is None else min(context_tokens, most)
            seconds += count * decode_attention_s(work, read_tokens)
        return max(seconds, self.floor_s)

    def bound_at(self, context_tokens: float) -> Bound:
        """What attention of all layers would take longer for by itself, computing or reading."""
        excess_s = 0.0
        for count, work in self.layers:
            most = work.most_context_tokens
            read_tokens = context_tokens if most is None else min(context_tokens, most)
            excess_s += count * (work.compute_per_token_s - work.memory_per_token_s) * read_tokens
            excess_s -= count * work.memory_base_s
        return "compute" if excess_s > 0 else "memory"


def seconds_at(
    curve: DecodeCurve, context_tokens: FloatArray
) -> tuple[FloatArray, "np.ndarray[Any, np.dtype[np.bool_]]"]:
    """`curve.at` but for the floor and whether `curve.bound_at` is compute, of many sums of contexts at once."""
    seconds, excess_s = np.full(len(context_tokens), curve.constant_s), np.zeros(len(context_tokens))
    for count, work in curve.layers:
        most = work.most_context_tokens
        read_tokens = context_tokens if most is None else np.minimum(context_tokens, most)
        compute_s = work.compute_per_token_s * read_tokens
        memory_s = work.memory_base_s + work.memory_per_token_s * read_tokens
        seconds += count * (memory_s**3 + compute_s**3) ** (1 / 3)
        excess_s += count * (compute_s - memory_s)
    return seconds, excess_s > 0


class AttentionWork:
    """The attention layers of a pipeline stage as one GPU holds them; equal layers are timed once and multiplied.

    `prefill_launch_s` is what launching prefill attention costs over all layers; a kernel that decodes as well is
    launched once. `decodes_ride_along` where decodes of a mixed step run in that kernel, as in FlashAttention 2.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        tensor_parallel_size: int,
        kv_dtype_bytes: float,
        stage: Stage | None = None,
    ) -> None:
        layers: Counter[Attention] = Counter()
        for layer, count in (stage or whole(model)).distinct_layers(model).items():
            layers[layer.attention.per_rank(tensor_parallel_size)] += count
            if layer.attention.index_topk:
                layers[_indexer(layer.attention)] += count
        self._gpu = gpu
        self._kv_dtype_bytes = kv_dtype_bytes
        self._layers = tuple((count, layer) for layer, count in layers.items())
        fits = {layer: prefill_fit(layer, kv_dtype_bytes, gpu) for layer in layers}
        self._prefills = tuple(
            (count, prefill_attention(layer, kv_dtype_bytes, fits[layer]), prefill_speed(fits[layer], gpu))
            for layer, count in layers.items()
        )
        self.prefill_launch_s = sum(count * fits[layer].launch_s for layer, count in layers.items())
        self.decodes_ride_along = any(fit.decode_rows > 0 for fit in fits.values())
        self.decode = cache(self._time_decode)
        self._latest = StepShape(0, 0, (), 0)
        self._latest_s = (0.0, 0.0)

    def _time_decode(self, num_decodes: int, num_drafts: int = 0) -> DecodeCurve:
        """Seconds of attention alone, by the decodes' summed context; a constant 0 without decodes."""
        if num_decodes == 0:
            return DecodeCurve(0.0, ())
        works = [
            (
                count,
                decode_attention(
                    num_decodes, attention, self._kv_dtype_bytes, self._gpu, float(num_decodes + num_drafts)
                ),
            )
            for count, attention in self._layers
        ]
        return DecodeCurve(sum(count * work.fixed_s for count, work in works), tuple(works))

    def of_step(self, shape: StepShape) -> tuple[float, float]:
        """`seconds` of a step; the latest is kept, as stages with the same layers ask one after the other."""
        if shape is not self._latest:
            num_decodes, context_tokens, chunks, _, num_drafts = self._latest = shape
            self._latest_s = self.seconds(num_decodes, context_tokens, chunks, num_drafts)
        return self._latest_s

    def seconds(
        self, num_decodes: int, context_tokens: float, chunks: tuple[tuple[int, int], ...], num_drafts: int
    ) -> tuple[float, float]:
        """Seconds for the chunks and for the decodes; a step that has both pays its launches once.

        Decodes that run in the chunks' kernel cost what they add to it.
        """
        decode_s = self.decode(num_decodes, num_drafts).at(context_tokens)
        if not chunks:
            return 0.0, decode_s
        prefill_s = self.prefill_s(chunks)
        if not num_decodes:
            return prefill_s + self.prefill_launch_s, 0.0
        if self.decodes_ride_along:
            mixed_s = self.mixed_s(chunks, num_decodes, context_tokens) + self.prefill_launch_s
            decode_s = max(decode_s, mixed_s - prefill_s)
        return prefill_s, decode_s

    def prefill_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Seconds for the chunks together, without launches."""
        seconds = 0.0
        for count, layer, speed in self._prefills:
            seconds += count * prefill_attention_s(prefill_work(layer, chunks), speed)
        return seconds

    def prefill_bound(self, chunks: tuple[tuple[int, int], ...]) -> Bound:
        """What the chunks' attention takes longer for over all layers, computing or moving."""
        excess_s = 0.0
        for count, layer, speed in self._prefills:
            compute_s, memory_s = prefill_terms(prefill_work(layer, chunks), speed)
            excess_s += count * (compute_s - memory_s)
        return "compute" if excess_s > 0 else "memory"

    def mixed_s(self, chunks: tuple[tuple[int, int], ...], num_decodes: int, context_tokens: float) -> float:
        """Seconds for chunks and decodes in one kernel, without launches."""
        seconds = 0.0
        for count, attention in self._layers:
            seconds += count * mixed_attention_s(
                chunks, num_decodes, context_tokens, attention, self._kv_dtype_bytes, self._gpu
            )
        return seconds


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
