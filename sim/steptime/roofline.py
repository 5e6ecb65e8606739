"""How long a step takes: its kernels one after the other on the GPU, beside or before the host's work for it."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.sampling import truncation
from sim.specs.stages import Stage, whole
from sim.steptime.attention import AttentionWork, DecodeCurve, seconds_at
from sim.steptime.graphs import GraphDispatch
from sim.steptime.lora import LoraWork
from sim.steptime.options import DEFAULT_STEP_TIMES, Composition, StepTimeOptions
from sim.steptime.parts import BOUNDS, DecodeParts, OperatorTime, StepParts, split, step_parts
from sim.steptime.protocol import FloatArray, StepShape
from sim.steptime.sampling import SamplingWork
from sim.steptime.token_work import TokenWork


class Batch(NamedTuple):
    """A step's cost by its number of tokens alone: kernels over all of them, and launching those outside a graph."""

    tokens_s: float
    launches_s: float


class RooflineStepTime:
    """The StepTimeModel of one model, or of a pipeline stage of it, on one kind of GPU under resolved engine arguments.

    Only the last stage samples. The scheduler's work is the first one's; on each of the others the host prepares the inputs and launches
    while the batch is on its way, and what of that shows (`exposed_s`) is taken to be what shows on a single GPU.

    `composition` says how a mixed step is run. "additive", as in vLLM: matrices are multiplied once over all tokens and
    attention is timed for each part. "two_pass" and "max" run two passes, one after the other or side by side.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        engine: ResolvedEngine,
        options: StepTimeOptions = DEFAULT_STEP_TIMES,
        stage: Stage | None = None,
    ) -> None:
        stage = stage or whole(model)
        ranks = engine.tensor_parallel_size
        truncated_by = truncation(model.name, engine.vllm_version, options.sampling)
        lora = LoraWork(stage.distinct_layers(model), gpu, engine) if engine.enable_lora else None
        self._token_work = TokenWork(model, gpu, ranks, options.expert_routing, lora, stage)
        self._attention = AttentionWork(model, gpu, ranks, engine.kv_cache_dtype_bytes, stage)
        self._graphs = GraphDispatch.of(engine)
        self._host = gpu.operators.host
        self._is_async = engine.async_scheduling
        self._is_first = stage.is_first
        self._composition: Composition = options.composition
        self._batch = cache(self._time_batch)
        sampling = SamplingWork(model, gpu, ranks, truncated_by, stage)
        self._sampling_s = cache(sampling.seconds)
        self._samplers = cache(sampling.kernels)
        self._decode_attention = cache(self._attention.decode)
        self.decode_curve: Callable[[int], DecodeCurve] = cache(self._time_decodes)

    def step_s(self, shape: StepShape) -> float:
        """Duration of the step: the longer of GPU and host under async scheduling, else one after the other."""
        num_decodes, context_tokens, chunks, num_sampled = shape
        if not chunks and num_sampled == num_decodes:
            return self.decode_curve(num_decodes).at(context_tokens)
        gpu_s = self._pass_s(shape) if self._composition == "additive" else sum(map(self._pass_s, self._passes(shape)))
        return self._with_host_s(gpu_s, num_decodes + len(chunks))

    def _with_host_s(self, gpu_s: float, num_requests: int) -> float:
        return max(gpu_s + self._after_s(num_requests), self._least_s(num_requests))

    def explain(self, shape: StepShape) -> list[OperatorTime]:
        """Where `step_s` goes, operator by operator; linear layers are split between prefill and decode by tokens.

        "sampling" is the output head and the sampler; "launches" and "host" are what the GPU waits for. Under "max"
        the operators are those of the longer pass.
        """
        times = [time for part in self._passes(shape) for time in self._explain_pass(part)]
        gpu_s = sum(time.prefill_s + time.decode_s for time in times)
        waiting_s = self._with_host_s(gpu_s, shape.num_decodes + len(shape.chunks)) - gpu_s
        return [*times, split("host", "host", waiting_s, shape.num_decodes / shape.num_tokens)]

    def parts(self, shape: StepShape) -> StepParts:
        """Prefill, decode and host of the step; matrices, which multiply all tokens at once, are split by tokens."""
        return step_parts(self.explain(shape))

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The decode parts of steps that decode so many requests and nothing else, by the sums of their contexts."""
        batch, whole = self._batch(num_decodes, True), self.decode_curve(num_decodes)
        attention_s, computes = seconds_at(self._decode_attention(num_decodes), context_tokens)
        decode_s = batch.tokens_s + self._sampling_s(num_decodes) + attention_s
        after_s = self._after_s(num_decodes)
        by_bound = dict.fromkeys(BOUNDS, np.zeros(len(context_tokens)))
        for time in self._explain_tokens(StepShape(num_decodes, 0, (), num_decodes)):
            by_bound[time.bound] = by_bound[time.bound] + time.decode_s
        by_bound["compute"] = by_bound["compute"] + np.where(computes, attention_s, 0.0)
        by_bound["memory"] = by_bound["memory"] + np.where(computes, 0.0, attention_s)
        by_bound["host"] = np.maximum(decode_s + after_s, whole.floor_s) - decode_s
        return DecodeParts(decode_s, np.argmax([by_bound[bound] for bound in BOUNDS], axis=0))

    def _passes(self, shape: StepShape) -> tuple[StepShape, ...]:
        if self._composition == "additive" or not shape.chunks or not shape.num_decodes:
            return (shape,)
        num_prefills_sampled = max(0, shape.num_sampled - shape.num_decodes)
        prefill = StepShape(0, 0, shape.chunks, num_prefills_sampled)
        decode = StepShape(shape.num_decodes, shape.decode_context_tokens, (), shape.num_sampled - num_prefills_sampled)
        return (prefill, decode) if self._composition == "two_pass" else (max(prefill, decode, key=self._pass_s),)

    def _pass_s(self, shape: StepShape) -> float:
        """Seconds of one forward pass on the GPU, waiting for launches included."""
        tokens_s, launches_s = self._batch(shape.num_tokens, not shape.chunks)
        prefill_s, decode_s = self._attention_s(shape)
        return max(tokens_s + self._sampling_s(shape.num_sampled) + prefill_s + decode_s, launches_s)

    def _attention_s(self, shape: StepShape) -> tuple[float, float]:
        """Seconds of attention for the chunks and for the decodes; a step that has both pays its launches once.

        Decodes that run in the chunks' kernel cost what they add to it.
        """
        attention, (num_decodes, context_tokens, chunks, _) = self._attention, shape
        decode_s = self._decode_attention(num_decodes).at(context_tokens)
        if not chunks:
            return 0.0, decode_s
        prefill_s = attention.prefill_s(chunks)
        if not num_decodes:
            return prefill_s + attention.prefill_launch_s, 0.0
        if attention.decodes_ride_along:
            mixed_s = attention.mixed_s(chunks, num_decodes, context_tokens) + attention.prefill_launch_s
            decode_s = max(decode_s, mixed_s - prefill_s)
        return prefill_s, decode_s

    def _time_batch(self, num_tokens: int, is_uniform_decode: bool) -> Batch:
        graph, num_padded = self._graphs.dispatch(num_tokens, is_uniform_decode=is_uniform_decode)
        work = self._token_work
        num_launches = {"full": 0, "piecewise": work.num_piecewise_launches, "none": work.num_launches}[graph]
        tokens_s = sum(work.seconds_by_operator(num_padded).values())
        return Batch(tokens_s, num_launches * self._host.launch_s)

    def _time_decodes(self, num_decodes: int) -> DecodeCurve:
        batch, after_s = self._batch(num_decodes, True), self._after_s(num_decodes)
        attention = self._decode_attention(num_decodes)
        return DecodeCurve(
            constant_s=batch.tokens_s + self._sampling_s(num_decodes) + attention.constant_s + after_s,
            layers=attention.layers,
            floor_s=max(batch.launches_s + after_s, self._least_s(num_decodes)),
        )

    def _after_s(self, num_requests: int) -> float:
        """What the host takes with the GPU idle."""
        return self._host.exposed_s if self._is_async or not self._is_first else self._host_s(num_requests)

    def _least_s(self, num_requests: int) -> float:
        """The scheduler's step, however short the GPU's is."""
        return self._host_s(num_requests) if self._is_first else 0.0

    def _host_s(self, num_requests: int) -> float:
        return self._host.step_s + self._host.request_s * num_requests

    def _explain_pass(self, shape: StepShape) -> list[OperatorTime]:
        times = [*self._explain_tokens(shape), *self._explain_attention(shape)]
        launches_s = self._batch(shape.num_tokens, not shape.chunks).launches_s
        idle_s = max(0.0, launches_s - sum(time.prefill_s + time.decode_s for time in times))
        return [*times, split("launches", "host", idle_s, shape.num_decodes / shape.num_tokens)]

    def _explain_tokens(self, shape: StepShape) -> list[OperatorTime]:
        """All kernels but attention."""
        is_uniform_decode, decode_share = not shape.chunks, shape.num_decodes / shape.num_tokens
        padded = self._graphs.dispatch(shape.num_tokens, is_uniform_decode=is_uniform_decode).num_tokens
        sampled_share = min(1.0, shape.num_decodes / max(1, shape.num_sampled))
        return [
            *(
                split(operator, bound, seconds, decode_share)
                for operator, bound, seconds in self._token_work.kernels(padded)
            ),
            *(split("sampling", bound, seconds, sampled_share) for bound, seconds in self._samplers(shape.num_sampled)),
        ]

    def _explain_attention(self, shape: StepShape) -> list[OperatorTime]:
        """Attention of the chunks and of the decodes."""
        prefill_s, decode_s = self._attention_s(shape)
        times = []
        if shape.chunks:
            times.append(OperatorTime("attention", self._attention.prefill_bound(shape.chunks), prefill_s, 0.0))
        if shape.num_decodes:
            bound = self._decode_attention(shape.num_decodes).bound_at(shape.decode_context_tokens)
            times.append(OperatorTime("attention", bound, 0.0, decode_s))
        return times
