"""What limits a deployment: shares of the time it is busy, and of the time requests wait."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import SchedulerConfig
from sim.engine.leap_columns import Leaps
from sim.engine.leap_records import LEAPS_AT_ONCE, LeapRecords
from sim.engine.leaps import end_s
from sim.engine.records import Floats, Ints, Records, RequestRecords
from sim.engine.step_records import StepRecords
from sim.metrics.kv_on_its_way import Watched
from sim.specs.hardware import HardwareProfile
from sim.steptime.protocol import StepShape, StepTimeModel

RooflineOn = Callable[[HardwareProfile], StepTimeModel]
Causes = dict[str, NDArray[np.bool_]]

NUM_SAMPLES = 200  # steps looked at, each standing for the same share of the busy time
FASTER = 1.1  # factor by which each resource is improved to measure its effect
WORTH_SAYING = 0.02

QUEUES = {
    "token_budget": "the token budget",
    "max_num_seqs": "max_num_seqs",
    "kv_space": "KV space",
    "static_batch": "the end of a batch",  # under static batching alone
}
MET = ("token_budget", "max_num_seqs", "kv_space")
"""What a step may have reached."""
RESOURCES = {
    "hbm_bandwidth": "HBM bandwidth",
    "compute": "compute",
    "links": "links of the GPUs",
    "host": "host and kernel launches",
}


class Limits(NamedTuple):
    """Shares: `busy` of the GPU's busy time by resource, `queued` of all time by what made requests wait."""

    busy: Mapping[str, float]
    queued: Mapping[str, float]

    def __str__(self) -> str:
        parts = [f"{RESOURCES[name]} {share:.0%}" for name, share in _largest(self.busy)[:2]]
        parts += [f"waits for {QUEUES[name]} {share:.0%} of the time" for name, share in _largest(self.queued)]
        return ", ".join(parts) or "nothing: requests come too slowly"

    def to_json(self) -> dict[str, Any]:
        return {"busy": dict(self.busy), "queued": dict(self.queued), "text": str(self)}


def _largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, share) for name, share in shares.items() if share >= WORTH_SAYING), key=lambda item: -item[1])


def limits(
    records: Records,
    config: SchedulerConfig,
    gpu: HardwareProfile,
    roofline_on: RooflineOn | None,
    *,
    span_s: float,
    steps: Sequence[Watched] = (),
) -> Limits:
    """Computed from the records of a replay that took `span_s`, over all replicas. `roofline_on` times steps on a variant of
    the GPU; without it `busy` is empty.
    """
    samples = sampled_shapes(records.leaps, config)
    return limits_of(records, config, gpu, roofline_on, samples, span_s=span_s, steps=steps)


def limits_of(
    records: Records,
    config: SchedulerConfig,
    gpu: HardwareProfile,
    roofline_on: RooflineOn | None,
    samples: list[StepShape],
    *,
    span_s: float,
    steps: Sequence[Watched] = (),
) -> Limits:
    """The same where steps have been sampled already; `steps` are those of the records, where KV is on its way for some."""
    busy = resources(samples, gpu, roofline_on) if roofline_on and samples else {}
    return Limits(busy, _queued(records, config, span_s, steps))


def limited_steps(records: Records, config: SchedulerConfig, steps: Sequence[Watched] = ()) -> dict[str, float]:
    """Of the steps, how many met each limit: a batch that filled the token budget, as many running requests as may run,
    a request preempted or kept waiting for blocks.
    """
    counts: Counter[str] = Counter(dict.fromkeys(MET, 0))
    for part, out in _parts(records, config, steps):
        counts.update(_num_limited(part, config, out))
    return {name: count / max(1, records.leaps.num_ran_steps) for name, count in counts.items()}


def _num_limited(part: Leaps, config: SchedulerConfig, out: Causes) -> dict[str, int]:
    """Steps that met each limit."""
    met = {
        "token_budget": part.num_tokens >= config.token_budget,
        "max_num_seqs": part.num_running >= config.max_running,
        "kv_space": out["kv_space"],
    }
    num_steps = part.num_steps * part.ran
    return {name: int(num_steps[where].sum()) for name, where in met.items()}


class Waits(NamedTuple):
    """By limit: seconds in which it left requests waiting, and steps that met it."""

    seconds: Counter[str]
    num_steps: Counter[str]


def waits_of(leaps: LeapRecords, config: SchedulerConfig) -> Waits:
    """Of some leaps of an engine that splits prompts into chunks."""
    found = Waits(Counter(dict.fromkeys(_causes(config), 0)), Counter(dict.fromkeys(MET, 0)))
    for part in leaps.parts():
        out = what_ran_out(part, config, None, np.zeros(1, dtype=np.int64))
        durations_s = part.durations_s
        found.seconds.update({name: float(durations_s[where].sum()) for name, where in out.items()})
        found.num_steps.update(_num_limited(part, config, out))
    return found


def _queued(records: Records, config: SchedulerConfig, span_s: float, steps: Sequence[Watched]) -> dict[str, float]:
    """Time in which requests were left waiting, by the limit that the step had reached."""
    seconds: dict[str, list[Floats]] = {name: [np.zeros(0)] for name in _causes(config)}
    for part, causes in _parts(records, config, steps):
        durations_s = part.durations_s
        for name, where in causes.items():
            seconds[name].append(durations_s[where])
    return {name: float(np.concatenate(some).sum()) / span_s if span_s else 0.0 for name, some in seconds.items()}


def _causes(config: SchedulerConfig) -> list[str]:
    return [name for name in QUEUES if name != "static_batch" or config.engine.batching == "static"]


def _parts(records: Records, config: SchedulerConfig, steps: Sequence[Watched]) -> Iterator[tuple[Leaps, Causes]]:
    for watched in steps or [Watched(records.leaps)]:
        yield from waits_by_leap(records.requests, config, watched)


def waits_by_leap(
    requests: RequestRecords, config: SchedulerConfig, watched: Watched
) -> Iterator[tuple[Leaps, Causes]]:
    """All leaps, some at a time, and which of them left requests waiting, by reason; `requests` are those of these leaps."""
    next_prompt = None if config.engine.enable_chunked_prefill else NextPrompt.of(requests)
    for part in watched.leaps.parts():
        yield part, what_ran_out(part, config, next_prompt, watched.on_its_way.num_requests(part.start_s))


def what_ran_out(
    leaps: Leaps | StepRecords, config: SchedulerConfig, next_prompt: "NextPrompt | None", num_on_their_way: Ints
) -> Causes:
    """By the first reason in the scheduler's order: a pass that preempts admits no request; others admit while tokens,
    seats and blocks last. A prompt that must not be split also waits for tokens. A static batch lets nobody in until it has ended.
    """
    preempted, is_waiting, num_running = (
        leaps.num_preempted > 0,
        leaps.num_waiting > num_on_their_way,
        leaps.num_running,
    )
    tokens_left = config.token_budget - leaps.num_tokens
    has_no_tokens = tokens_left <= 0
    if next_prompt:
        has_no_tokens |= (num_running < config.max_running) & (next_prompt.num_tokens(leaps.start_s) > tokens_left)
    by_tokens = is_waiting & ~preempted & has_no_tokens
    by_seats = is_waiting & ~preempted & ~by_tokens & (num_running >= config.max_running)
    others = is_waiting & ~preempted & ~by_tokens & ~by_seats
    causes = {"token_budget": by_tokens, "max_num_seqs": by_seats}
    if config.engine.batching == "static":
        return causes | {"kv_space": preempted, "static_batch": others}
    return causes | {"kv_space": preempted | others}


class NextPrompt(NamedTuple):
    """The prompts of requests in order of arrival, less their cached tokens, and until when each or one before it waited."""

    tokens: Ints
    until_s: Floats

    @classmethod
    def of(cls, requests: RequestRecords) -> Self:
        scheduled_s = requests.first_scheduled_s.copy()
        scheduled_s[list(requests.rejected)] = -np.inf
        until_s = np.maximum.accumulate(np.where(np.isnan(scheduled_s), np.inf, scheduled_s))
        return cls(np.append(requests.prompt_tokens - requests.num_cached_tokens, 0), until_s)

    def num_tokens(self, at_s: Floats) -> Ints:
        """Tokens of the earliest arrival that has not been scheduled at these times; 0 for none."""
        return np.asarray(self.tokens[np.searchsorted(self.until_s, at_s, side="right")])


def sampled_shapes(leaps: LeapRecords, config: SchedulerConfig) -> list[StepShape]:
    """Steps at equal distances of busy time; none if no step ran.

    Contexts are taken from the blocks in use, prompts as one chunk each.
    """
    if not leaps.num_ran_steps:
        return []
    ends_s = np.array([busy_s[-1] for busy_s in _busy_s(leaps)])
    return shapes_at(leaps, (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES * ends_s[-1], config)


def shapes_at(leaps: LeapRecords, at_s: Floats, config: SchedulerConfig) -> list[StepShape]:
    """The steps that run when steps have run for so many seconds in all."""
    rows, left_s = _leaps_at(leaps, at_s)
    found = leaps.at(rows)
    steps = found.first_pass + _steps_at(found, found.end_s - left_s)
    free = found.num_free_blocks + _taken_within(leaps, steps + 1, found.last_pass + 1)
    columns = (found.num_decodes, found.num_drafts, found.num_chunk_tokens, free)
    facts = zip(*(column.tolist() for column in columns), strict=True)
    return [
        _shape(num_decodes, num_drafts, chunk_tokens, num_free, config)
        for num_decodes, num_drafts, chunk_tokens, num_free in facts
    ]


def _taken_within(leaps: LeapRecords, firsts: Ints, ends: Ints) -> Ints:
    """Blocks that decodes took, less those they gave back, in the passes from each of `firsts` to before each of `ends`."""
    num_taken, begin = np.zeros(len(firsts), dtype=np.int64), 0
    for taken in leaps.decode_stretches.blocks_taken(leaps.num_passes):
        before = np.concatenate(([0], np.cumsum(taken)))
        to_end, to_first = (before[np.clip(passes - begin, 0, len(taken))] for passes in (ends, firsts))
        num_taken += to_end - to_first
        begin += len(taken)
    return num_taken


def _leaps_at(leaps: LeapRecords, at_s: Floats) -> tuple[Ints, Floats]:
    """The leaps that run then, by row, and how long before the end of each that is."""
    ends_s = np.array([busy_s[-1] for busy_s in _busy_s(leaps)])
    in_part = np.searchsorted(ends_s, at_s)
    rows, left_s = [], []
    for number, busy_s in enumerate(_busy_s(leaps)):
        here_s = at_s[in_part == number]
        inside = np.searchsorted(busy_s, here_s)
        rows.append(number * LEAPS_AT_ONCE + inside)
        left_s.append(busy_s[inside] - here_s)
    return np.concatenate(rows), np.concatenate(left_s)


def _busy_s(leaps: LeapRecords) -> Iterator[Floats]:
    """The time in which steps have run by the end of each leap, some leaps at a time."""
    before_s = 0.0
    for part in leaps.parts():
        busy_s = np.cumsum(np.concatenate(([before_s], np.where(part.ran, part.durations_s, 0.0))))[1:]
        before_s = float(busy_s[-1])
        yield busy_s


def _steps_at(leaps: Leaps, at_s: Floats) -> Ints:
    """The step of each leap that runs at a time, numbered from 0."""
    found = [
        bisect_left(range(1, curve.num_steps), until_s, key=partial(end_s, curve))
        for curve, until_s in zip(leaps.curves(), at_s.tolist(), strict=True)
    ]
    return np.array(found)


def _shape(
    num_decodes: int, num_drafts: int, num_chunk_tokens: int, num_free_blocks: int, config: SchedulerConfig
) -> StepShape:
    held_tokens = (config.num_usable_blocks - num_free_blocks) * config.block_size
    context_tokens = max(num_decodes + num_drafts, held_tokens - num_chunk_tokens) if num_decodes else 0
    chunks = ((num_chunk_tokens, 0),) if num_chunk_tokens > 1 else ()
    return StepShape(num_decodes, context_tokens, chunks, num_decodes + len(chunks), num_drafts)


def resources(shapes: list[StepShape], gpu: HardwareProfile, roofline_on: RooflineOn) -> dict[str, float]:
    """Each resource's share of the time: the saving from a tenth more of it, scaled up; the host has the rest."""
    faster = {
        "hbm_bandwidth": replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * FASTER),
        "compute": replace(gpu, peak_flops={dtype: flops * FASTER for dtype, flops in gpu.peak_flops.items()}),
        "links": replace(
            gpu, link_bytes_per_s=gpu.link_bytes_per_s * FASTER, pcie_bytes_per_s=gpu.pcie_bytes_per_s * FASTER
        ),
    }
    base_s = steps_s(roofline_on(gpu), shapes)
    saved = {
        name: float(1 - np.mean(steps_s(roofline_on(profile), shapes) / base_s)) for name, profile in faster.items()
    }
    shares = {name: min(1.0, max(0.0, share / (1 - 1 / FASTER))) for name, share in saved.items()}
    return shares | {"host": max(0.0, 1 - sum(shares.values()))}


def steps_s(model: StepTimeModel, shapes: list[StepShape]) -> Floats:
    """Seconds of each of these steps."""
    return np.array(list(map(model.step_s, shapes)))
