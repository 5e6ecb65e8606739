"""Scenarios in a few words: who asks for what and when, an engine with tiny limits, and what it then did step by step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.content import output_id, private_prompt_id
from sim.engine.records import Records
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Segment, Trace
from tests.configs import changed, scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engines import Engine

ONE_SECOND = RecordedStepTime(base_ns=1, per_token_ns=0, per_ctx_ns=0)
"""Every step takes one second: who arrives at t is seen by step t+1, which starts at t."""

MOST_STEPS = 50_000

Part = tuple[int | str, int]
"""Tokens of a prompt: `(content id, tokens)`, or `(id of an earlier request, first tokens of its prompt and output)`."""


class Ask(NamedTuple):
    """A request; its prompt is a number of tokens that nobody else has, or parts that others may share."""

    id: str
    prompt: int | tuple[Part, ...]
    output: int
    at: float = 0.0
    priority: int = 0


def make_trace(asks: Sequence[Ask]) -> Trace:
    """A trace of requests given in order of arrival."""
    spoken: dict[str, tuple[Segment, ...]] = {}
    prompts = []
    for row, ask in enumerate(asks):
        parts = ((private_prompt_id(row), ask.prompt),) if isinstance(ask.prompt, int) else ask.prompt
        prompts.append(tuple(segment for part in parts for segment in _segments(part, spoken)))
        spoken[ask.id] = (*prompts[-1], (output_id(row), ask.output))
    return Trace(
        request_id=tuple(ask.id for ask in asks),
        arrival_s=np.array([ask.at for ask in asks], dtype=np.float64),
        prompt_tokens=np.array([sum(tokens for _, tokens in prompt) for prompt in prompts], dtype=np.int64),
        output_tokens=np.array([ask.output for ask in asks], dtype=np.int64),
        priority=np.array([ask.priority for ask in asks], dtype=np.int64),
        segments=prompts,
    )


def _segments(part: Part, spoken: dict[str, tuple[Segment, ...]]) -> list[Segment]:
    content, missing = part
    if isinstance(content, int):
        return [(content, missing)]
    segments = []
    for content_id, tokens in spoken[content]:
        segments.append((content_id, min(tokens, missing)))
        missing -= segments[-1][1]
    assert missing == 0, f"request {content} is {missing} tokens shorter than the part asked for"
    return [segment for segment in segments if segment[1]]


def make_config(**arguments: Any) -> SchedulerConfig:
    """Blocks of 4 tokens, 64 tokens a step, sync scheduling, and room for everybody."""
    roomy = scheduler_config(max_num_seqs=64, max_num_batched_tokens=64, block_size=4, async_scheduling=False)
    return changed(roomy, **arguments)


@dataclass(frozen=True)
class Run:
    """What an engine did: its step log and its records."""

    trace: Trace
    steps: list[dict[str, Any]]
    records: Records

    @property
    def tokens(self) -> list[dict[str, int]]:
        """By step: the tokens that each request got."""
        return [{row[0]: row[1] for row in step["sched"]} for step in self.steps]

    def column(self, field: str) -> list[Any]:
        """One field of the log, by step."""
        return [step[field] for step in self.steps]

    @property
    def gaps(self) -> Counter[float]:
        """How often each gap between two tokens of a request occurred."""
        counted: Counter[float] = Counter()
        for gap, count in zip(*map(np.ndarray.tolist, self.records.gaps()), strict=True):
            counted[gap] += count
        return +counted

    def of(self, request_id: str, fact: str) -> Any:
        """One fact of a request's record."""
        return getattr(self.records.requests, fact)[self.trace.request_id.index(request_id)]


def replay(engine: Engine, trace: Trace, config: SchedulerConfig, step_time: StepTimeModel) -> Run:
    """Run an engine and keep its step log; a run without end fails."""
    steps: list[dict[str, Any]] = []

    def log(step: dict[str, Any]) -> None:
        assert len(steps) < MOST_STEPS, f"{MOST_STEPS} steps and no end"
        steps.append(step)

    records = engine(trace, config, step_time, step_log=log)
    return Run(trace, steps, records)


def run(engine: Engine, asks: Sequence[Ask], **arguments: Any) -> Run:
    """Run requests, in order of arrival, through an engine of one-second steps."""
    return replay(engine, make_trace(asks), make_config(**arguments), ONE_SECOND)
