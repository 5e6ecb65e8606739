"""A step that passes through pipeline stages: each stage's share of it, and the messages between them."""

from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import NamedTuple

import numpy as np

from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage, stages_of
from sim.specs.weight_offload import offloaded
from sim.steptime.graphs import GraphDispatch
from sim.steptime.links import all_gather_s, message_s
from sim.steptime.operators import ACTIVATION_BYTES
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.steptime.parts import BOUNDS, DecodeParts, OperatorTime, StepParts, step_parts
from sim.steptime.perturbed import ScaledCurve
from sim.steptime.protocol import (
    Agreement,
    DecodeCurve,
    FloatArray,
    StagedStepTime,
    StepShape,
    StepTimeModel,
    num_tokens_of,
)
from sim.steptime.roofline import RooflineStepTime
from sim.steptime.weight_offload import OffloadedStepTime, with_host_weights

NUM_TENSORS = 2  # hidden states and residual: vLLM's IntermediateTensors


class Message:
    """What a stage sends to the next: hidden states and residual of all its tokens (vLLM's `send_tensor_dict`), and the states that it
    or one before has tapped for a `drafter`.

    Each rank sends its share to its like in the next stage, over whatever link joins the two, and there all gather the whole; the
    slowest counts. What the hosts say to each other before is taken as hidden behind the stage's kernels.
    """

    def __init__(
        self, model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, drafter: Drafter | None = None
    ) -> None:
        tapped = drafter.tapped_layers if drafter else ()
        self._num_tensors = [
            NUM_TENSORS + sum(layer < stage.stop for layer in tapped) for stage in stages_of(model, engine)
        ]
        self._gpu = gpu
        self._num_ranks = engine.tensor_parallel_size
        self._num_stages = engine.pipeline_parallel_size
        self._bytes_per_token = ACTIVATION_BYTES * model.hidden_size
        self._graphs = GraphDispatch.of(engine)
        self._timed: dict[int, float] = {}
        self._sent_s = cache(self._send)

    def seconds(self, after_stage: int, shape: StepShape) -> float:
        """From the end of a stage to the beginning of the next; tokens that a CUDA graph pads with are sent as well."""
        num_tokens, is_uniform_decode = num_tokens_of(shape), not shape.chunks
        key = 2 * (self._num_stages * num_tokens + after_stage) + is_uniform_decode
        found = self._timed.get(key)
        if found is None:
            found = self._timed[key] = self._time(after_stage, num_tokens, is_uniform_decode)
        return found

    def agreed_s(self, after_stage: int, shape: StepShape, agreement: Agreement) -> float:
        """That of a rank in lock step with others, which may pad more."""
        return self._sent_s(after_stage, agreement.num_tokens or shape.num_tokens)

    def all_s(self, shape: StepShape) -> float:
        """All that a step sends on its way."""
        return sum(self.seconds(stage, shape) for stage in range(self._num_stages - 1))

    def _time(self, after_stage: int, num_tokens: int, is_uniform_decode: bool) -> float:
        return self._sent_s(
            after_stage, self._graphs.dispatch(num_tokens, is_uniform_decode=is_uniform_decode).num_tokens
        )

    def _send(self, after_stage: int, num_tokens: int) -> float:
        num_bytes, ranks = num_tokens * self._bytes_per_token, self._num_ranks
        senders = range(after_stage * ranks, (after_stage + 1) * ranks)
        sent_s = max(message_s(num_bytes / ranks, sender, sender + ranks, self._gpu) for sender in senders)
        gathered_s = all_gather_s(num_bytes, ranks, self._gpu) if ranks > 1 else 0.0
        return self._num_tensors[after_stage] * (sent_s + gathered_s)


class PipelineCurve(NamedTuple):
    """A DecodeCurve: those of the stages one after the other, and the messages between them."""

    curves: Sequence[DecodeCurve]
    messages_s: float

    def at(self, context_tokens: float) -> float:
        return sum((curve.at(context_tokens) for curve in self.curves), self.messages_s)


class PipelineStepTime:
    """The StagedStepTime of stages that are timed by a roofline each; a step by itself takes what it needs to pass them all."""

    def __init__(self, stages: Sequence[RooflineStepTime | OffloadedStepTime], message: Message) -> None:
        self._stages = tuple(stages)
        self._message = message
        self.decode_curve: Callable[[int], PipelineCurve] = cache(self._time_decodes)

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return self._stages[stage].step_s(shape)

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        return self._stages[stage].decode_curve(num_decodes)

    def hop_s(self, stage: int, shape: StepShape) -> float:
        return self._message.seconds(stage, shape)

    def agreed_stage_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        return self._stages[stage].agreed_s(shape, agreement)

    def agreed_stage_curve(self, stage: int, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        return self._stages[stage].agreed_curve(num_decodes, agreement)

    def agreed_hop_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        return self._message.agreed_s(stage, shape, agreement)

    def step_s(self, shape: StepShape) -> float:
        return sum((stage.step_s(shape) for stage in self._stages), self._message.all_s(shape))

    def parts(self, shape: StepShape) -> StepParts:
        """Those of the stages together; messages are bound by the link, and time in which no kernel runs."""
        times = [time for stage in self._stages for time in stage.explain(shape)]
        found, messages_s = step_parts(times), self._message.all_s(shape)
        message = OperatorTime("message", "link", messages_s, 0.0)
        return found._replace(host_s=found.host_s + messages_s, bound=step_parts([*times, message]).bound)

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The decode parts of steps that decode so many requests and nothing else; each stage counts for its own bound."""
        decode_s = np.zeros(len(context_tokens))
        by_bound = np.zeros((len(BOUNDS), len(context_tokens)))
        by_bound[BOUNDS.index("link")] = self._message.all_s(_decodes(num_decodes))
        for stage in self._stages:
            of_stage = stage.decode_parts(num_decodes, context_tokens)
            decode_s += of_stage.decode_s
            assert of_stage.bound is not None, "a roofline knows its bounds"
            by_bound[of_stage.bound, np.arange(len(context_tokens))] += of_stage.decode_s
        return DecodeParts(decode_s, np.argmax(by_bound, axis=0))

    def _time_decodes(self, num_decodes: int) -> PipelineCurve:
        curves = [stage.decode_curve(num_decodes) for stage in self._stages]
        return PipelineCurve(curves, self._message.all_s(_decodes(num_decodes)))


class SharedOutStepTime:
    """A StagedStepTime that shares out the time of the whole model's steps, by the layers of each stage."""

    def __init__(self, whole: StepTimeModel, stages: Sequence[Stage], message: Message) -> None:
        num_layers = stages[-1].stop
        self._whole = whole
        self._shares = [(stage.stop - stage.start) / num_layers for stage in stages]
        self._message = message

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return self._whole.step_s(shape) * self._shares[stage]

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        return ScaledCurve(self._whole.decode_curve(num_decodes), self._shares[stage])

    def hop_s(self, stage: int, shape: StepShape) -> float:
        return self._message.seconds(stage, shape)

    def step_s(self, shape: StepShape) -> float:
        return self._whole.step_s(shape) + self._message.all_s(shape)

    def decode_curve(self, num_decodes: int) -> PipelineCurve:
        return PipelineCurve((self._whole.decode_curve(num_decodes),), self._message.all_s(_decodes(num_decodes)))


def pipeline_step_time(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    options: StepTimeOptions = DEFAULT_STEP_TIMES,
    host_link_bytes_per_s: float = inf,
    drafter: Drafter | None = None,
) -> StagedStepTime:
    """That of an engine with several stages; step times that are given are shared out. Weights in host memory come over a link of so many bytes a second."""
    stages = stages_of(model, engine)
    message = Message(model, gpu, engine, drafter)
    if options.given is not None:
        return SharedOutStepTime(options.given, stages, message)
    timed: list[RooflineStepTime | OffloadedStepTime] = []
    roofline: RooflineStepTime | None = None
    for stage in stages:
        roofline = RooflineStepTime(model, gpu, engine, options, stage, drafter, before=roofline)
        from_host = offloaded(model, engine, stage)
        timed.append(
            with_host_weights(roofline, from_host, model, gpu, engine, host_link_bytes_per_s, options.expert_routing)
        )
    return PipelineStepTime(timed, message)


def _decodes(num_decodes: int) -> StepShape:
    return StepShape(num_decodes, 0, (), num_decodes)
