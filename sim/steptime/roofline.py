"""How long a step takes: its kernels one after the other on the GPU, beside or before the host's work for it."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.sampling import truncation
from sim.specs.stages import Stage, whole
from sim.steptime.attention import AttentionWork, DecodeCurve, seconds_at
from sim.steptime.drafting import Drafting
from sim.steptime.graphs import GraphDispatch
from sim.steptime.lora import LoraWork
from sim.steptime.micro_batches import MicroBatches, SplitLayers
from sim.steptime.options import DEFAULT_STEP_TIMES, Composition, StepTimeOptions
from sim.steptime.parts import BOUNDS, DecodeParts, OperatorTime, StepParts, split, step_parts
from sim.steptime.protocol import Agreement, FloatArray, GraphKind, StepShape, num_tokens_of, shape_of
from sim.steptime.protocol import DecodeCurve as AnyDecodeCurve
from sim.steptime.sampling import SamplingWork
from sim.steptime.token_work import TimesKernels, TokenWork

Batch = tuple[float, float, float]
"""A step's cost by its number of tokens alone, in seconds: kernels over all of them, what the GPU waits between graphs, and the host launches.

A plain tuple, of which compiled code makes many in the time of a named one.
"""


class SplitCurve(NamedTuple):
    """A DecodeCurve of steps in two micro-batches."""

    seconds_at: Callable[[float], float]

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        return self.seconds_at(context_tokens)


class RooflineStepTime:
    """The StepTimeModel of one model, or of a pipeline stage of it, on one kind of GPU under resolved engine arguments.

    Only the last stage samples. The scheduler's work is the first one's; on each of the others the host prepares the inputs and launches
    while the batch is on its way, and what of that shows (`exposed_s`) is taken to be what shows on a single GPU. A `drafter` is on the
    last stage, whole. A stage with the layers of the one `before` it, in the same order, shares what is worked out of them.

    Between two piecewise graphs the host runs Python once a layer, and the GPU waits for it to begin attention and the next graph, however
    far ahead the host is (`_waits_s`); without a graph it launches each kernel.

    A CPU launches its kernels on the cores that run them, so that launches add to a step (`_dispatch_s`) instead of running ahead; what
    torch.compile makes of a layer around attention counts as one, as in a piecewise graph.

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
        drafter: Drafter | None = None,
        before: "RooflineStepTime | None" = None,
    ) -> None:
        stage = stage or whole(model)
        ranks = engine.tensor_parallel_size
        truncated_by = truncation(model.name, engine.vllm_version, options.sampling)
        layers = stage.distinct_layers(model)
        lora = LoraWork(layers, gpu, engine) if engine.enable_lora else None
        self.layers = list(layers.items())
        self._token_work = TokenWork(model, gpu, engine, options.expert_routing, lora, stage)
        self._attention = AttentionWork(model, gpu, ranks, engine.kv_cache_dtype_bytes, stage)
        if before is not None and before.layers == self.layers:
            self._attention, self._token_work.matrices = before.of_layers
        self.of_layers: tuple[AttentionWork, TimesKernels] = self._attention, self._token_work.matrices
        self._graphs = GraphDispatch.of(engine)
        self._drafting = (
            Drafting(engine.speculation, drafter, gpu, engine, options.expert_routing)
            if engine.speculation and stage.is_last
            else None
        )
        self._micro_batches = (
            MicroBatches(self._token_work, self._attention, gpu, stage.stop - stage.start, engine.all2all_backend)
            if engine.enable_dbo and engine.data_parallel_size > 1 and model.has_experts
            else None
        )
        host = gpu.operators.host
        self._host_step_s, self._host_request_s, self._exposed_s = host.step_s, host.request_s, host.exposed_s
        self._is_async = engine.async_scheduling
        self._is_first = stage.is_first
        self._composition: Composition = options.composition
        work, launch_s = self._token_work, host.launch_s
        self._launches_s: dict[GraphKind, float] = {
            "full": 0.0,
            "piecewise": work.num_layers * host.layer_s,
            "none": work.num_launches * launch_s,
        }
        self._waits_s: dict[GraphKind, float] = {
            "full": 0.0,
            "piecewise": work.num_layers * host.gap_s,
            "none": 0.0,
        }
        self._dispatch_s = 0.0
        if gpu.architecture == "CPU":
            self._dispatch_s = launch_s * (work.num_launches if engine.enforce_eager else work.num_piecewise_launches)
            self._launches_s = self._waits_s = dict.fromkeys(self._launches_s, 0.0)
        self._batches: dict[int, Batch] = {}
        self._own_s: dict[int, float] = {}
        self._experts_s: dict[int, float] = {}
        sampling = SamplingWork(model, gpu, ranks, truncated_by, stage)
        self._sampling = sampling
        self._sampled_s: dict[int, float] = {}
        self._samplers = cache(sampling.kernels)
        self._curve = cache(self._time_decodes)
        self.decode_curve: Callable[[int], DecodeCurve] = cache(lambda num_decodes: self._curve(num_decodes, 0, None))

    def step_s(self, shape: StepShape) -> float:
        """Duration of the step: the longer of GPU and host under async scheduling, else one after the other."""
        return self._step_s(shape, None)

    def agreed_s(self, shape: StepShape, agreement: Agreement) -> float:
        """That of a rank in lock step with others."""
        if agreement.num_ubatches > 1:
            return self._split_s(shape, agreement, self._split(shape, agreement), shape.decode_context_tokens)
        return self._step_s(shape, agreement)

    def _step_s(self, shape: StepShape, agreement: Agreement | None) -> float:
        num_decodes, context_tokens, chunks, num_sampled, num_drafts = shape
        if not chunks and num_sampled == num_decodes:
            if agreement is None or agreement.num_tokens:
                return self._curve(num_decodes, num_drafts, agreement).at(context_tokens)
            # without padding nearly every step has an agreement of its own, and kept curves would be many
            return self._time_decodes(num_decodes, num_drafts, agreement).at(context_tokens)
        gpu_s = 0.0
        for part, agreed in self._passes(shape, agreement):
            gpu_s += self._pass_s(part, agreed)
        return self._with_host_s(gpu_s + self.drafting_s(shape), num_decodes + len(chunks))

    def agreed_curve(self, num_decodes: int, agreement: Agreement) -> AnyDecodeCurve:
        """That of a rank in lock step with others."""
        if agreement.num_ubatches == 1:
            return self._curve(num_decodes, 0, agreement)
        shape = StepShape(num_decodes, 0, (), num_decodes)
        layers = self._split(shape, agreement)
        return SplitCurve(lambda context_tokens: self._split_s(shape, agreement, layers, context_tokens))

    def _split(self, shape: StepShape, agreement: Agreement) -> SplitLayers:
        assert self._micro_batches is not None, "ranks without enable_dbo agree on whole steps"
        return self._micro_batches.layers(shape, agreement)

    def _split_s(self, shape: StepShape, agreement: Agreement, layers: SplitLayers, context_tokens: float) -> float:
        """Duration of a step in two micro-batches, which are put together before tokens are sampled."""
        launches_s = agreement.num_ubatches * self._launches_s[agreement.graph]
        gpu_s = max(layers.at(context_tokens) + self._sampling_s(shape.num_sampled + shape.num_drafts), launches_s)
        return self._with_host_s(gpu_s + self.drafting_s(shape), shape.num_requests)

    def drafting_s(self, shape: StepShape) -> float:
        """What speculation adds behind the step."""
        return self._drafting.seconds(shape) if self._drafting else 0.0

    def _with_host_s(self, gpu_s: float, num_requests: int) -> float:
        return max(gpu_s + self._after_s(num_requests), self._least_s(num_requests))

    def explain(self, shape: StepShape) -> list[OperatorTime]:
        """Where `step_s` goes, operator by operator; linear layers are split between prefill and decode by tokens.

        "sampling" is the output head and the sampler, "drafting" all that speculation adds behind the step; "launches" and
        "host" are what the GPU waits for. Under "max"
        the operators are those of the longer pass.
        """
        times = [time for part, _ in self._passes(shape, None) for time in self._explain_pass(part)]
        if self._drafting:
            times.append(split("drafting", "memory", self._drafting.seconds(shape), shape.decode_share))
        gpu_s = sum(time.prefill_s + time.decode_s for time in times)
        waiting_s = self._with_host_s(gpu_s, shape.num_requests) - gpu_s
        return [*times, split("host", "host", waiting_s, shape.decode_share)]

    def parts(self, shape: StepShape) -> StepParts:
        """Prefill, decode and host of the step; matrices, which multiply all tokens at once, are split by tokens."""
        return step_parts(self.explain(shape))

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The decode parts of steps that decode so many requests and nothing else, by the sums of their contexts."""
        tokens_s, waits_s, _ = self._batch(num_decodes, self._graphs.query_len == 1)
        whole = self.decode_curve(num_decodes)
        attention_s, computes = seconds_at(self._attention.decode(num_decodes), context_tokens)
        decode_s = tokens_s + self._sampling_s(num_decodes) + attention_s
        after_s = waits_s + self._after_s(num_decodes)
        by_bound = dict.fromkeys(BOUNDS, np.zeros(len(context_tokens)))
        for time in self._explain_tokens(StepShape(num_decodes, 0, (), num_decodes)):
            by_bound[time.bound] = by_bound[time.bound] + time.decode_s
        by_bound["compute"] = by_bound["compute"] + np.where(computes, attention_s, 0.0)
        by_bound["memory"] = by_bound["memory"] + np.where(computes, 0.0, attention_s)
        by_bound["host"] = np.maximum(decode_s + after_s, whole.floor_s) - decode_s
        return DecodeParts(decode_s, np.argmax([by_bound[bound] for bound in BOUNDS], axis=0))

    def _passes(self, shape: StepShape, agreement: Agreement | None) -> tuple[tuple[StepShape, Agreement | None], ...]:
        """What each computes, and under which agreement; prompts in a pass of their own are under none."""
        if self._composition == "additive" or not shape.chunks or not shape.num_decodes:
            return ((shape, agreement),)
        num_prefills_sampled = max(0, shape.num_sampled - shape.num_decodes)
        prefill = (StepShape(0, 0, shape.chunks, num_prefills_sampled), None)
        decode = (shape._replace(chunks=(), num_sampled=shape.num_sampled - num_prefills_sampled), agreement)
        if self._composition == "two_pass":
            return prefill, decode
        return (prefill if self._pass_s(*prefill) >= self._pass_s(*decode) else decode,)

    def _pass_s(self, shape: StepShape, agreement: Agreement | None) -> float:
        """Seconds of one forward pass on the GPU, waiting for launches included."""
        tokens_s, waits_s, launches_s = self._batch_of(shape, agreement)
        prefill_s, decode_s = self._attention_s(shape)
        num_rows = shape.num_sampled + shape.num_drafts
        return max(tokens_s + waits_s + self._sampling_s(num_rows) + prefill_s + decode_s, launches_s)

    def _attention_s(self, shape: StepShape) -> tuple[float, float]:
        """Seconds of attention for the chunks and for the decodes."""
        return self._attention.of_step(shape)

    def _batch_of(self, shape: StepShape, agreement: Agreement | None) -> Batch:
        if agreement is None:
            return self._batch(num_tokens_of(shape), self._graphs.is_uniform(shape))
        return self._agreed_batch(num_tokens_of(shape), agreement)

    def _agreed_batch(self, num_tokens: int, agreement: Agreement) -> Batch:
        """Of a rank that has so many tokens."""
        graph, num_agreed, num_all_tokens, _ = agreement
        num_own = num_agreed or num_tokens
        own_s, experts_s = self._own_s.get(num_own), self._experts_s.get(num_all_tokens)
        if own_s is None:
            own_s = self._own_s[num_own] = self._token_work.own_s(num_own)
        if experts_s is None:
            experts_s = self._experts_s[num_all_tokens] = self._token_work.experts_s(num_all_tokens)
        return own_s + experts_s, self._waits_s[graph], self._launches_s[graph]

    def _batch(self, num_tokens: int, is_uniform_decode: bool) -> Batch:
        key = 2 * num_tokens + is_uniform_decode  # compiled code asks a dict in a fraction of the time of a `cache`
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = self._time_batch(num_tokens, is_uniform_decode)
        return found

    def _sampling_s(self, num_rows: int) -> float:
        found = self._sampled_s.get(num_rows)
        if found is None:
            found = self._sampled_s[num_rows] = self._sampling.seconds(num_rows)
        return found

    def _time_batch(self, num_tokens: int, is_uniform_decode: bool) -> Batch:
        graph, num_padded = self._graphs.dispatch(num_tokens, is_uniform_decode=is_uniform_decode)
        tokens_s = sum(self._token_work.seconds_by_operator(num_padded).values())
        return tokens_s, self._waits_s[graph], self._launches_s[graph]

    def _time_decodes(self, num_decodes: int, num_drafts: int, agreement: Agreement | None) -> DecodeCurve:
        num_tokens, after_s = num_decodes + num_drafts, self._after_s(num_decodes)
        if agreement is None:
            shape = shape_of(num_decodes, 0, (), num_decodes, num_drafts)
            tokens_s, waits_s, launches_s = self._batch_of(shape, None)
        else:
            tokens_s, waits_s, launches_s = self._agreed_batch(num_tokens, agreement)
        attention = self._attention.decode(num_decodes, num_drafts)
        step = DecodeCurve(
            constant_s=tokens_s + waits_s + self._sampling_s(num_tokens) + attention.constant_s + after_s,
            layers=attention.layers,
            floor_s=max(launches_s + after_s, self._least_s(num_decodes)),
        )
        if self._drafting is None:
            return step
        return self._with_drafting(step, shape_of(num_decodes, 0, (), num_decodes, num_drafts))

    def _with_drafting(self, step: DecodeCurve, shape: StepShape) -> DecodeCurve:
        """The GPU drafts behind the step; where the host schedules ahead, it launches both in one go."""
        assert self._drafting is not None, "this engine speculates"
        drafting = self._drafting.curve(shape.num_decodes, shape.num_drafts)
        if not self._is_async:
            return DecodeCurve(step.constant_s, step.layers, step.floor_s, drafting)
        return DecodeCurve(
            constant_s=step.constant_s + drafting.constant_s,
            layers=(*step.layers, *drafting.layers),
            floor_s=step.floor_s + self._drafting.launches_s(shape.num_decodes, shape.num_tokens),
        )

    def _after_s(self, num_requests: int) -> float:
        """What the host takes with the GPU idle."""
        own_s = self._exposed_s if self._is_async or not self._is_first else self._host_s(num_requests)
        return own_s + self._dispatch_s

    def _least_s(self, num_requests: int) -> float:
        """The scheduler's step, however short the GPU's is."""
        return self._host_s(num_requests) if self._is_first else 0.0

    def _host_s(self, num_requests: int) -> float:
        return self._host_step_s + self._host_request_s * num_requests

    def _explain_pass(self, shape: StepShape) -> list[OperatorTime]:
        times = [*self._explain_tokens(shape), *self._explain_attention(shape)]
        _, waits_s, launches_s = self._batch(shape.num_tokens, self._graphs.is_uniform(shape))
        idle_s = max(waits_s, launches_s - sum(time.prefill_s + time.decode_s for time in times))
        return [*times, split("launches", "host", idle_s, shape.decode_share)]

    def _explain_tokens(self, shape: StepShape) -> list[OperatorTime]:
        """All kernels but attention."""
        is_uniform_decode, decode_share = self._graphs.is_uniform(shape), shape.decode_share
        padded = self._graphs.dispatch(shape.num_tokens, is_uniform_decode=is_uniform_decode).num_tokens
        num_rows = shape.num_sampled + shape.num_drafts
        sampled_share = min(1.0, (shape.num_decodes + shape.num_drafts) / max(1, num_rows))
        return [
            *(
                split(operator, bound, seconds, decode_share)
                for operator, bound, seconds in self._token_work.kernels(padded)
            ),
            *(split("sampling", bound, seconds, sampled_share) for bound, seconds in self._samplers(num_rows)),
        ]

    def _explain_attention(self, shape: StepShape) -> list[OperatorTime]:
        """Attention of the chunks and of the decodes."""
        prefill_s, decode_s = self._attention_s(shape)
        times = []
        if shape.chunks:
            times.append(OperatorTime("attention", self._attention.prefill_bound(shape.chunks), prefill_s, 0.0))
        if shape.num_decodes:
            bound = self._attention.decode(shape.num_decodes, shape.num_drafts).bound_at(shape.decode_context_tokens)
            times.append(OperatorTime("attention", bound, 0.0, decode_s))
        return times
