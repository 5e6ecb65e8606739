"""Files of inference-perf: stages of Poisson or even load, and prompts that share system prompts or nothing.

Drawn by its rules (kubernetes-sigs/inference-perf: loadgen/load_timer.py at 0949afc8, datagen/shared_prefix_datagen.py at
0ba9aceb), not with its generator: times and lengths are of the same distributions. A stage sends int(rate x duration)
requests. Prompts that share are made and shuffled once; each stage begins with the first of them. After a stage has drained, `interval`
and a second pass; that it looks only once a second whether it has, is left out.
"""

import io
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from sim.errors import TraceError
from sim.inputs import parse_yaml
from sim.specs.strict_yaml import NotNegative, Strict, checked
from sim.workload.columns import MAX_TOKENS, Floats, Ints
from sim.workload.names import RowNames
from sim.workload.prefixes import blocks
from sim.workload.source import yaml_text
from sim.workload.trace import Segment, Trace

FORMAT = "inference-perf"
LEAD_S = 1.0  # between the interval and the first request's clock
MAX_REQUESTS = 10_000_000  # as of generated traces
SECTION = re.compile(rb"^(load|data):\s*(#.*)?$", re.MULTILINE)
READ = "of inference-perf, a load of type poisson or constant is read with data of type shared_prefix or random"

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Stage(Strict):
    rate: Annotated[float, Field(gt=0, le=1e6)]
    duration: Annotated[float, Field(gt=0, le=1e6)]
    num_requests: None = None  # of closed loads
    concurrency_level: None = None

    @property
    def count(self) -> int:
        return int(self.rate * self.duration)


class LoadSection(Strict):
    """What its workers may do at a time, and their timeouts, are not simulated."""

    type: Literal["poisson", "constant"]
    interval: NotNegative = 1.0
    stages: Annotated[list[Stage], Field(min_length=1)]
    num_workers: Any = None
    worker_max_concurrency: Any = None
    worker_max_tcp_connections: Any = None
    request_timeout: Any = None
    base_seed: Any = None


class SharedPrefix(Strict):
    num_groups: Tokens
    num_prompts_per_group: Tokens
    system_prompt_len: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    question_len: Tokens
    question_len_std: NotNegative = 0.0
    question_len_min: Tokens | None = None
    question_len_max: Tokens | None = None
    output_len: Tokens
    output_len_std: NotNegative = 0.0
    output_len_min: Tokens | None = None
    output_len_max: Tokens | None = None
    enable_multi_turn_chat: Literal[False] = False

    @property
    def num_prompts(self) -> int:
        return self.num_groups * self.num_prompts_per_group


class Distribution(Strict):
    """Normal, clipped and rounded."""

    min: Tokens
    max: Tokens
    mean: NotNegative
    std_dev: NotNegative = 0.0

    def drawn(self, count: int, rng: np.random.Generator) -> Ints:
        return _lengths(self.mean, self.std_dev, self.min, self.max, count, rng)


class SharedPrefixes(Strict):
    type: Literal["shared_prefix"]
    shared_prefix: SharedPrefix


class RandomPrompts(Strict):
    """Every prompt by itself."""

    type: Literal["random"]
    input_distribution: Distribution
    output_distribution: Distribution


class SharedPrefixLoad(Strict):
    load: LoadSection
    data: SharedPrefixes


class RandomLoad(Strict):
    load: LoadSection
    data: RandomPrompts


Workload = SharedPrefixLoad | RandomLoad


class Prompts(NamedTuple):
    """One entry a request; `segments` None where nothing is shared."""

    prompt_tokens: Ints
    output_tokens: Ints
    segments: tuple[tuple[Segment, ...], ...] | None = None


def is_workload(stream: io.BufferedReader) -> bool:
    """Whether a stream begins with sections of such a file."""
    return SECTION.search(stream.peek(1)) is not None


def read_workload(stream: io.BufferedReader, name: str, seed: int) -> Trace:
    """Its requests; equal seeds give equal ones. Raises TraceError, naming the key, for what is not read."""
    found = _checked(parse_yaml(yaml_text(stream, name), TraceError, name), name)
    prompting, arriving = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))
    counts = [stage.count for stage in found.load.stages]
    prompts = _prompts(found.data, counts, prompting)
    return Trace(
        request_id=RowNames(range(sum(counts))),
        arrival_s=_arrivals(found.load, arriving),
        prompt_tokens=prompts.prompt_tokens,
        output_tokens=prompts.output_tokens,
        stage=np.repeat(np.arange(len(counts)), counts),
        segments=prompts.segments,
        source=name,
        format=FORMAT,
        notes=(f"{name} is a load of inference-perf: its times and prompts are drawn with seed {seed}.",),
    )


def _checked(values: Any, name: str) -> Workload:
    """The sections that make requests; those on the server, the API, reports and storage say nothing here."""
    sections = {key: values[key] for key in ("load", "data") if key in values}
    _check_kind(sections, name)
    kind: type[Workload] = RandomLoad if sections["data"]["type"] == "random" else SharedPrefixLoad
    found = checked(sections, kind, Path(name), TraceError)
    counts = [stage.count for stage in found.load.stages]
    num_prompts = found.data.shared_prefix.num_prompts if isinstance(found.data, SharedPrefixes) else 0
    if min(counts) < 1 or sum(counts) > MAX_REQUESTS or num_prompts > MAX_REQUESTS:
        raise TraceError(
            f"{name}: `load.stages` must each have a request at least, rate x duration, and all together, as the prompts, "
            f"{MAX_REQUESTS:,} at most; got {min(counts):,} in the smallest, {sum(counts):,} in all."
        )
    return found


def _check_kind(sections: dict[str, Any], name: str) -> None:
    """Raises TraceError for loads and data that are another program's work to read."""
    for section, read in (("load", ("poisson", "constant")), ("data", ("shared_prefix", "random"))):
        kind = sections[section].get("type") if isinstance(sections.get(section), dict) else None
        if kind not in read:
            got = "nothing" if kind is None else str(kind)[:40]
            raise TraceError(f"{name}: {READ}, got {got} in `{section}.type`; write such a load as rows of a trace.")
    shared = sections["data"].get("shared_prefix")
    if isinstance(shared, dict) and shared.get("enable_multi_turn_chat"):
        raise TraceError(f"{name}: {READ} and no `enable_multi_turn_chat`; write such chats as sessions of a trace.")


def _prompts(data: SharedPrefixes | RandomPrompts, counts: Sequence[int], rng: np.random.Generator) -> Prompts:
    """Those of the requests of all stages."""
    if isinstance(data, RandomPrompts):
        count = sum(counts)
        return Prompts(data.input_distribution.drawn(count, rng), data.output_distribution.drawn(count, rng))
    prompt_tokens, output_tokens, segments = _shared_prompts(data.shared_prefix, rng)
    order = np.concatenate([np.arange(count) % len(segments) for count in counts])
    return Prompts(prompt_tokens[order], output_tokens[order], tuple(segments[row] for row in order.tolist()))


def _shared_prompts(spec: SharedPrefix, rng: np.random.Generator) -> tuple[Ints, Ints, list[tuple[Segment, ...]]]:
    """Prompts, answers and what prompts are made of, shuffled. Each group's system prompt before a question of its own; a question is as many blocks as a system prompt's length asks."""
    count, size = spec.num_prompts, spec.system_prompt_len
    questions = _lengths(
        spec.question_len, spec.question_len_std, spec.question_len_min, spec.question_len_max, count, rng
    )
    outputs = _lengths(spec.output_len, spec.output_len_std, spec.output_len_min, spec.output_len_max, count, rng)
    block_size = size or int(questions.max())
    most_blocks = -(-int(questions.max()) // block_size)
    segments = []
    for number, tokens in enumerate(questions.tolist()):
        first = spec.num_groups + number * most_blocks
        shared = [number // spec.num_prompts_per_group] if size else []
        segments.append(blocks([*shared, *range(first, first + -(-tokens // block_size))], size + tokens, block_size))
    order = rng.permutation(count)
    return size + questions[order], outputs[order], [segments[row] for row in order.tolist()]


def _lengths(mean: float, std: float, low: int | None, high: int | None, count: int, rng: np.random.Generator) -> Ints:
    drawn = rng.normal(mean, std, count)
    return np.clip(np.rint(drawn), low or 1, high or MAX_TOKENS).astype(np.int64)


def _arrivals(load: LoadSection, rng: np.random.Generator) -> Floats:
    """Stage after stage, as if none had anything to drain."""
    begin_s, arrivals = 0.0, []
    for stage in load.stages:
        after_s = _poisson(stage, rng) if load.type == "poisson" else _spread(stage.count, stage.duration, rng)
        arrivals.append(begin_s + after_s)
        begin_s = float(arrivals[-1][-1]) + load.interval + LEAD_S
    return np.concatenate(arrivals)


def _poisson(stage: Stage, rng: np.random.Generator) -> Floats:
    """Second after second with a number drawn for each, until the stage has all its requests."""
    seconds: list[Floats] = []
    num_drawn = 0
    while num_drawn < stage.count:
        seconds.append(len(seconds) + _spread(int(rng.poisson(stage.rate)), 1.0, rng))
        num_drawn += len(seconds[-1])
    return np.fromiter(chain.from_iterable(seconds), np.float64, num_drawn)[: stage.count]


def _spread(count: int, duration_s: float, rng: np.random.Generator) -> Floats:
    """Exponential gaps that fill the time."""
    gaps = rng.exponential(size=count)
    return np.cumsum(gaps) * (duration_s / gaps.sum()) if count else gaps
