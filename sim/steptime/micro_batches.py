"""Steps that data-parallel ranks split in two, so that one half computes while the other's tokens are on their way (dual-batch overlap).

Mirrors vLLM's v1/worker/ubatch_utils.py and v1/worker/ubatching.py, and where these yield in fused_moe/modular_kernel.py (0.33). The halves take turns
on one GPU: both attend, then both go to the experts; what is sent for one is on its way meanwhile, one message after the other. Each half reads the
weights again. DeepEP's kernels for much at once run beside the others, and take multiprocessors from kernels that compute;
its low-latency ones leave the sending to the network, but over NVLink write themselves, before anything else goes on.

Deliberate differences: all layers of a half take equally long; decodes come first in a step, and halves share their contexts evenly;
up to 0.19 dispatch and combine of the former kernels waited for more of the other half than here.
"""

from typing import NamedTuple

from sim.specs.hardware import HardwareProfile
from sim.specs.model import ceil_div
from sim.steptime.attention import AttentionWork
from sim.steptime.experts_work import Exchange
from sim.steptime.parts import Bound
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.token_work import TokenWork

SENDING_SMS = 20
"""Multiprocessors that DeepEP's kernels for much at once take, and DeepGEMM leaves to them (VLLM_DBO_COMM_SMS)."""


class Half(NamedTuple):
    """What one half takes in a layer with experts: computing before them, the way there, computing at them, the way back."""

    before_s: float
    dispatch_s: float
    experts_s: float
    combine_s: float


def overlapped_s(first: Half, second: Half, num_layers: int) -> float:
    """How long both take together for that many layers."""
    halves = (first, second)
    computed_s = sent_s = 0.0
    arrived_s, back_s = [0.0, 0.0], [0.0, 0.0]
    for _ in range(num_layers):
        for number, half in enumerate(halves):
            computed_s = max(computed_s, back_s[number]) + half.before_s
            sent_s = arrived_s[number] = max(sent_s, computed_s) + half.dispatch_s
        for number, half in enumerate(halves):
            computed_s = max(computed_s, arrived_s[number]) + half.experts_s
            sent_s = back_s[number] = max(sent_s, computed_s) + half.combine_s
    return max(computed_s, sent_s)


def halves_of(shape: StepShape, num_first: int) -> tuple[StepShape, StepShape]:
    """A step's first so many tokens, fewer than it has, and the rest: a chunk may be cut. Contexts and samples are left out."""
    num_rows = shape.num_decodes + shape.num_drafts
    num_verified = min(num_first, num_rows)
    num_decodes = ceil_div(num_verified * shape.num_decodes, max(1, num_rows))
    num_drafts, left = num_verified - num_decodes, num_first - num_verified
    first, rest = [], []
    for chunk_tokens, computed_tokens in shape.chunks:
        taken = min(chunk_tokens, left)
        left -= taken
        if taken:
            first.append((taken, computed_tokens))
        if taken < chunk_tokens:
            rest.append((chunk_tokens - taken, computed_tokens + taken))
    return (
        StepShape(num_decodes, 0, tuple(first), 0, num_drafts),
        StepShape(shape.num_decodes - num_decodes, 0, tuple(rest), 0, shape.num_drafts - num_drafts),
    )


class HalfWork(NamedTuple):
    """A half's requests, and what it takes over all layers but for attention."""

    shape: StepShape
    own_s: float
    experts_s: float
    exchange: Exchange


class SplitLayers:
    """All layers of a split step, by the sum of its decodes' contexts."""

    def __init__(self, of: "MicroBatches", num_decodes: int, works: list[HalfWork]) -> None:
        self._of = of
        self._num_decodes = max(1, num_decodes)
        self._works = works

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        num_layers, num_exchanging = self._of.num_layers, self._of.num_exchanging_layers
        halves, others_s = [], 0.0
        for shape, own_s, experts_s, exchange in self._works:
            layer_s = (
                own_s + self._of.attention_s(shape, context_tokens * shape.num_decodes / self._num_decodes)
            ) / num_layers
            others_s += (num_layers - num_exchanging) * layer_s
            halves.append(
                Half(
                    layer_s + exchange.dispatch_kernel_s / num_exchanging,
                    exchange.dispatch_s / num_exchanging,
                    (experts_s + exchange.combine_kernel_s) / num_exchanging,
                    exchange.combine_s / num_exchanging,
                )
            )
        return overlapped_s(halves[0], halves[1], num_exchanging) + others_s


class MicroBatches:
    """Of a model whose ranks exchange tokens in some of its layers."""

    def __init__(
        self, token_work: TokenWork, attention: AttentionWork, gpu: HardwareProfile, num_layers: int, backend: str
    ) -> None:
        self.num_layers = num_layers
        self.num_exchanging_layers = token_work.num_exchanging_layers
        self._token_work = token_work
        self._attention = attention
        takes_sms = backend == "deepep_high_throughput"
        self._slowdown = gpu.num_sms / (gpu.num_sms - SENDING_SMS) if takes_sms else 1.0

    def layers(self, shape: StepShape, agreement: Agreement) -> SplitLayers:
        """Those of a rank's step that all have agreed to split."""
        num_ranks = agreement.num_all_tokens // agreement.num_tokens
        num_first = agreement.num_tokens // 2
        works = [
            self._half(half, num_tokens, num_ranks)
            for half, num_tokens in zip(
                halves_of(shape, num_first), (num_first, agreement.num_tokens - num_first), strict=True
            )
        ]
        return SplitLayers(self, shape.num_decodes, works)

    def attention_s(self, half: StepShape, context_tokens: float) -> float:
        """Seconds of a half's attention over all layers."""
        prefill_s, decode_s = self._attention.seconds(half.num_decodes, context_tokens, half.chunks, half.num_drafts)
        if half.chunks and self._attention.prefill_bound(half.chunks) == "compute":
            prefill_s *= self._slowdown
        return prefill_s + decode_s

    def _half(self, shape: StepShape, num_tokens: int, num_ranks: int) -> HalfWork:
        """Padded to so many tokens, as that of every other rank."""
        work, num_all_tokens = self._token_work, num_tokens * num_ranks
        return HalfWork(
            shape,
            self._computing_s(work.own_kernels(num_tokens)),
            self._computing_s(work.routed(num_all_tokens)),
            work.exchange(num_all_tokens),
        )

    def _computing_s(self, kernels: list[tuple[str, Bound, float]]) -> float:
        """Those that wait for multiplications have fewer multiprocessors for them."""
        return sum(seconds * (self._slowdown if bound == "compute" else 1.0) for _, bound, seconds in kernels)
