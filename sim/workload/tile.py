"""A longer trace of the same shape: one trace, repeated."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.errors import ConfigError
from sim.workload.columns import Ints
from sim.workload.names import PackedNames
from sim.workload.trace import Segment, Trace


def tile(trace: Trace, copies: int, *, share_prefixes: bool = False) -> Trace:
    """`trace` `copies` times in a row, a mean gap between two copies. Request and session ids stay unique (`r0-1` is r0
    of the second copy); prompts of different copies share prefixes only with `share_prefixes`.
    """
    if copies < 1:
        raise ConfigError(f"`copies` must be at least 1, got {copies}.")
    period_s = trace.duration_s * (1 + 1 / max(len(trace) - 1, 1))
    offsets_s = np.repeat(np.arange(copies) * period_s, len(trace))
    return replace(
        trace,
        request_id=_numbered(trace.request_id, copies),
        arrival_s=np.tile(trace.arrival_s, copies) + offsets_s,
        prompt_tokens=np.tile(trace.prompt_tokens, copies),
        output_tokens=np.tile(trace.output_tokens, copies),
        n=None if trace.n is None else np.tile(trace.n, copies),
        priority=None if trace.priority is None else np.tile(trace.priority, copies),
        lora_name=None if trace.lora_name is None else PackedNames.of(list(trace.lora_name) * copies),
        session_id=None if trace.session_id is None else _numbered(trace.session_id, copies),
        think_time_s=None if trace.think_time_s is None else np.tile(trace.think_time_s, copies),
        hold_s=None if trace.hold_s is None else np.tile(trace.hold_s, copies),
        stage=None if trace.stage is None else _stages_on(trace.stage, copies),
        line=None if trace.line is None else np.tile(trace.line, copies),
        max_concurrency=None if trace.max_concurrency is None else np.tile(trace.max_concurrency, copies),
        acceptance_length=None if trace.acceptance_length is None else np.tile(trace.acceptance_length, copies),
        slo_class=None if trace.slo_class is None else np.tile(trace.slo_class, copies),
        segments=None if trace.segments is None else _copied(trace.segments, copies, share=share_prefixes),
    )


def _stages_on(stage: Ints, copies: int) -> Ints:
    """The stages of each copy behind those of the copy before it."""
    num_stages = int(stage[-1]) + 1
    stages: Ints = np.tile(stage, copies) + num_stages * np.repeat(np.arange(copies), len(stage))
    return stages


def _numbered(names: Sequence[str], copies: int) -> PackedNames:
    return PackedNames.of(f"{name}-{copy}" for copy in range(copies) for name in names)


def _copied(segments: Sequence[tuple[Segment, ...]], copies: int, *, share: bool) -> tuple[tuple[Segment, ...], ...]:
    if share:
        return tuple(segments) * copies
    step = 1 + max(content for prompt in segments for content, _ in prompt)
    return tuple(
        tuple((content + copy * step, tokens) for content, tokens in prompt)
        for copy in range(copies)
        for prompt in segments
    )
