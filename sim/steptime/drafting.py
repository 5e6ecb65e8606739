"""What a step takes longer for by drafting: the drafter's passes, and what vLLM does around them.

vLLM drafts behind each step: EAGLE and MTP run once over the step's tokens, and then over one token a request for each
further draft; parallel drafters run once. Launches were fitted to EAGLE and EAGLE-3 on Llama-3.1-8B on an H100 by vLLM 0.8.5
(vllm-project/vllm #16937), batch 1, by benchmarks/fit_drafting.py; docs/speculation.md says how well that holds, and that nothing else was measured.
"""

from collections.abc import Mapping
from functools import cache

from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.releases import parse_version
from sim.specs.speculation import Speculation
from sim.steptime.attention import AttentionWork, DecodeCurve
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.graphs import GraphDispatch
from sim.steptime.links import all_gather_s
from sim.steptime.operators import ACTIVATION_BYTES, DecodeAttention, elementwise_s, served_gemm
from sim.steptime.protocol import StepShape
from sim.steptime.token_work import TokenWork

PASS_LAUNCHES: Mapping[str, int] = {"eagle3": 9}
"""Small kernels around the layers of a pass, in launches of a layer's, which take longer: positions, slots, embedding, head, choice of token; and
EAGLE-3's own vocabulary."""
OTHER_PASS_LAUNCHES = 1
STEP_LAUNCHES = 8
"""Those once a step: rejection of drafts, the next inputs."""
GRAPHS_SINCE = (0, 9, 0)  # vllm-project/vllm #17211 captures drafters piecewise
FP32_BYTES = 4
Layers = tuple[tuple[int, DecodeAttention], ...]


class Drafting:
    """The share of drafting in steps of an engine that speculates; `drafter` None looks drafts up in the text, on the host."""

    def __init__(
        self,
        speculation: Speculation,
        drafter: Drafter | None,
        gpu: HardwareProfile,
        engine: ResolvedEngine,
        expert_routing: ExpertRouting = "skewed",
    ) -> None:
        self._speculation = speculation
        self._host = gpu.operators.host
        self._is_async = engine.async_scheduling
        self._is_captured = parse_version(engine.vllm_version) >= GRAPHS_SINCE
        self._graphs = GraphDispatch.of(engine)
        self._passes = _Passes(drafter, gpu, engine, expert_routing) if drafter else None
        self._decode_curve = cache(self._curve)

    def curve(self, num_decodes: int, num_drafts: int) -> DecodeCurve:
        """Behind a step that decodes and nothing else, by the sum of contexts."""
        return self._decode_curve(num_decodes, num_decodes, num_drafts, num_decodes + num_drafts)

    def seconds(self, shape: StepShape) -> float:
        """Behind a step of any shape; drafters read prompts as well."""
        num_requests, context_tokens = shape.num_requests, shape.decode_context_tokens
        if not shape.chunks:
            return self.curve(shape.num_decodes, shape.num_drafts).at(context_tokens)
        context_tokens += sum(tokens + computed for tokens, computed in shape.chunks)
        curve = self._curve(num_requests, shape.num_decodes, shape.num_drafts, shape.num_tokens)
        reads_prompts = self._passes is not None and self._speculation.num_drafts_after(num_requests) > 0
        prefill_s = self._passes.prefill_s(shape.chunks) if self._passes and reads_prompts else 0.0
        return curve.at(context_tokens) + prefill_s

    def launches_s(self, num_requests: int, num_tokens: int) -> float:
        """What the host takes to launch it all."""
        method, count = self._speculation.method, self._num_passes(num_requests)
        if self._passes is None or not count:
            return STEP_LAUNCHES * self._host.launch_s
        launches = STEP_LAUNCHES + count * PASS_LAUNCHES.get(method, OTHER_PASS_LAUNCHES)
        layers_s = self._layers_s(self._passes, num_tokens) + (count - 1) * self._layers_s(self._passes, num_requests)
        return launches * self._host.launch_s + layers_s

    def _layers_s(self, passes: "_Passes", num_tokens: int) -> float:
        graph = self._graphs.dispatch(num_tokens, is_uniform_decode=False).graph
        if self._is_captured and graph != "none":
            return passes.num_layers * self._host.layer_s
        return passes.num_launches * self._host.launch_s

    def _num_passes(self, num_requests: int) -> int:
        num_drafts = self._speculation.num_drafts_after(num_requests)
        return min(1, num_drafts) if self._speculation.parallel_drafting else num_drafts

    def _curve(self, num_requests: int, num_decodes: int, num_drafts: int, num_tokens: int) -> DecodeCurve:
        """By the sum of contexts. Without async scheduling the GPU waits for what the host launches and looks up."""
        count = self._speculation.num_drafts_after(num_requests)
        once_s = 0.0 if self._is_async else STEP_LAUNCHES * self._host.launch_s
        if self._passes is None:
            return DecodeCurve(once_s + num_requests * self._host.request_s, ())
        if not count:
            return DecodeCurve(once_s, ())
        drafted = self._passes.in_parallel if self._speculation.parallel_drafting else self._passes.one_by_one
        constant_s, layers = drafted(num_requests, num_decodes, num_drafts, num_tokens, count)
        waits_s = 0.0 if self._is_async else self.launches_s(num_requests, num_tokens)
        return DecodeCurve(once_s + constant_s, layers, floor_s=waits_s)


class _Passes:
    """A drafter's kernels. Passes are a constant, and attention by the sum of contexts."""

    def __init__(
        self, drafter: Drafter, gpu: HardwareProfile, engine: ResolvedEngine, expert_routing: ExpertRouting
    ) -> None:
        ranks = engine.tensor_parallel_size
        self._work = TokenWork(drafter.a_pass, gpu, engine, expert_routing)
        self._attention = AttentionWork(drafter.a_pass, gpu, ranks, engine.kv_cache_dtype_bytes)
        self._head = drafter.head.per_rank(ranks)
        self._num_gpus = ranks
        self._gpu = gpu
        self._tokens_s = cache(self._time_tokens)
        self._head_s = cache(self._time_head)
        self.num_launches = self._work.num_launches
        self.num_layers = self._work.num_layers

    def one_by_one(
        self, num_requests: int, num_decodes: int, num_drafts: int, num_tokens: int, num_passes: int
    ) -> tuple[float, Layers]:
        """A pass over the step's tokens, and one over a token of each request for each further draft."""
        first, further = self._attention.decode(num_decodes, num_drafts), self._attention.decode(num_requests)
        times = num_passes - 1
        constant_s = self._tokens_s(num_tokens) + times * self._tokens_s(num_requests)
        constant_s += first.constant_s + times * further.constant_s + num_passes * self._head_s(num_requests)
        layers = (*first.layers, *((times * count, work) for count, work in further.layers if times))
        return constant_s, layers

    def in_parallel(
        self, num_requests: int, num_decodes: int, num_drafts: int, num_tokens: int, num_drafted: int
    ) -> tuple[float, Layers]:
        """A single pass, over the places of the next drafts as well."""
        num_places = num_requests * num_drafted
        attention = self._attention.decode(num_requests, num_decodes - num_requests + num_drafts + num_places)
        constant_s = self._tokens_s(num_tokens + num_places) + attention.constant_s + self._head_s(num_places)
        return constant_s, attention.layers

    def prefill_s(self, chunks: tuple[tuple[int, int], ...]) -> float:
        """Attention of prompts."""
        return self._attention.prefill_s(chunks)

    def _time_tokens(self, num_tokens: int) -> float:
        return sum(self._work.seconds_by_operator(num_tokens).values())

    def _time_head(self, num_rows: int) -> float:
        """Logits, gathered from all GPUs, and the largest of them."""
        gpu, num_logits = self._gpu, float(num_rows * self._head.out_features * self._num_gpus)
        seconds = served_gemm(float(num_rows), self._head, gpu).seconds + elementwise_s(num_logits * FP32_BYTES, gpu)
        if self._num_gpus > 1:
            seconds += all_gather_s(num_logits * ACTIVATION_BYTES, self._num_gpus, gpu)
        return seconds
