"""What limits a deployment: shares of the time it is busy, and of the time requests wait."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.config import SchedulerConfig
from sim.engine.records import Floats, Ints, LeapRecords, Records
from sim.specs.hardware import HardwareProfile
from sim.steptime.protocol import StepShape, StepTimeModel

RooflineOn = Callable[[HardwareProfile], StepTimeModel]
Causes = dict[str, NDArray[np.bool_]]

NUM_SAMPLES = 200  # steps looked at, each standing for the same share of the busy time
FASTER = 1.1  # factor by which each resource is improved to measure its effect
WORTH_SAYING = 0.02

QUEUES = {"token_budget": "the token budget", "max_num_seqs": "max_num_seqs", "kv_space": "KV space"}
RESOURCES = {
    "hbm_bandwidth": "HBM bandwidth",
    "compute": "compute",
    "links": "links between GPUs",
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
    records: Records, config: SchedulerConfig, gpu: HardwareProfile, roofline_on: RooflineOn | None, *, span_s: float
) -> Limits:
    """Computed from the records of a replay that took `span_s`, over all replicas. `roofline_on` times steps on a variant of
    the GPU; without it `busy` is empty.
    """
    return limits_of(records, config, gpu, roofline_on, sampled_shapes(records.leaps, config), span_s=span_s)


def limits_of(
    records: Records,
    config: SchedulerConfig,
    gpu: HardwareProfile,
    roofline_on: RooflineOn | None,
    samples: list[StepShape],
    *,
    span_s: float,
) -> Limits:
    """The same where steps have been sampled already."""
    busy = _resources(samples, gpu, roofline_on) if roofline_on and samples else {}
    return Limits(busy, _queued(records, config, span_s))


def limited_steps(records: Records, config: SchedulerConfig) -> dict[str, float]:
    """Of the steps, how many met each limit: a batch that filled the token budget, as many running requests as may run,
    a request preempted or kept waiting for blocks.
    """
    leaps = records.leaps
    out = _ran_out(records, config)
    met = {
        "token_budget": leaps.num_decodes + leaps.num_chunk_tokens >= config.token_budget,
        "max_num_seqs": leaps.num_running >= config.max_running,
        "kv_space": out["kv_space"],
    }
    num_steps = max(1, leaps.num_ran_steps)
    return {name: int(leaps.num_steps[where & leaps.ran].sum()) / num_steps for name, where in met.items()}


def _queued(records: Records, config: SchedulerConfig, span_s: float) -> dict[str, float]:
    """Time in which requests were left waiting, by the limit that the step had reached."""
    leaps = records.leaps
    seconds = leaps.durations_s()
    causes = _ran_out(records, config)
    return {name: float(seconds[where].sum()) / span_s if span_s else 0.0 for name, where in causes.items()}


def _ran_out(records: Records, config: SchedulerConfig) -> Causes:
    """Which leaps left requests waiting, by the first reason in the scheduler's order: a pass that preempts admits
    no request; others admit while tokens, seats and blocks last. A prompt that must not be split also waits for tokens.
    """
    leaps = records.leaps
    preempted, is_waiting = leaps.num_preempted > 0, leaps.num_waiting > 0
    tokens_left = config.token_budget - leaps.num_decodes - leaps.num_chunk_tokens
    has_no_tokens = tokens_left <= 0
    if not config.engine.enable_chunked_prefill:
        has_no_tokens |= (leaps.num_running < config.max_running) & (_next_prompt(records) > tokens_left)
    by_tokens = is_waiting & ~preempted & has_no_tokens
    by_seats = is_waiting & ~preempted & ~by_tokens & (leaps.num_running >= config.max_running)
    return {
        "token_budget": by_tokens,
        "max_num_seqs": by_seats,
        "kv_space": preempted | (is_waiting & ~by_tokens & ~by_seats),
    }


def _next_prompt(records: Records) -> Ints:
    """Prompt tokens of the earliest arrival that has not been scheduled when a leap begins, less its cached ones; 0 for
    none.
    """
    requests = records.requests
    scheduled_s = requests.first_scheduled_s.copy()
    scheduled_s[list(requests.rejected)] = -np.inf
    scheduled_s = np.maximum.accumulate(np.where(np.isnan(scheduled_s), np.inf, scheduled_s))
    heads = np.searchsorted(scheduled_s, records.leaps.start_s, side="right")
    tokens = np.append(requests.prompt_tokens - requests.num_cached_tokens, 0)
    return np.asarray(tokens[heads])


def sampled_shapes(leaps: LeapRecords, config: SchedulerConfig) -> list[StepShape]:
    """Steps at equal distances of busy time; none if no step ran.

    Contexts are taken from the blocks in use, prompts as one chunk each.
    """
    if not leaps.num_ran_steps:
        return []
    steps = _sampled_steps(leaps)
    rows = np.searchsorted(leaps.last_step, steps)
    taken = leaps.decode_stretches.blocks_taken(len(leaps.step_end_s))
    taken_since = [taken[step + 1 : last + 1].sum() for step, last in zip(steps, leaps.last_step[rows], strict=True)]
    free = leaps.num_free_blocks[rows] + np.array(taken_since)
    decodes, chunk_tokens = leaps.num_decodes[rows], leaps.num_chunk_tokens[rows]
    facts = zip(decodes.tolist(), chunk_tokens.tolist(), free.tolist(), strict=True)
    return [_shape(*fact, config) for fact in facts]


def _sampled_steps(leaps: LeapRecords) -> Ints:
    """The steps that run at equal distances of busy time: first the leap is found, then the step in it."""
    busy_s: Floats = np.cumsum(np.where(leaps.ran, leaps.durations_s(), 0.0))
    at_s = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES * busy_s[-1]
    rows = np.minimum(np.searchsorted(busy_s, at_s), len(busy_s) - 1)
    left_s = leaps.step_end_s[leaps.last_step[rows]] - (busy_s[rows] - at_s)
    last = leaps.last_step[rows]
    ends = zip((last - leaps.num_steps[rows] + 1).tolist(), last.tolist(), left_s.tolist(), strict=True)
    return np.array([first + np.searchsorted(leaps.step_end_s[first:end], until_s) for first, end, until_s in ends])


def _shape(num_decodes: int, num_chunk_tokens: int, num_free_blocks: int, config: SchedulerConfig) -> StepShape:
    held_tokens = (config.num_usable_blocks - num_free_blocks) * config.block_size
    context_tokens = max(num_decodes, held_tokens - num_chunk_tokens) if num_decodes else 0
    chunks = ((num_chunk_tokens, 0),) if num_chunk_tokens > 1 else ()
    return StepShape(num_decodes, context_tokens, chunks, num_decodes + len(chunks))


def _resources(shapes: list[StepShape], gpu: HardwareProfile, roofline_on: RooflineOn) -> dict[str, float]:
    """Each resource's share of the time: the saving from a tenth more of it, scaled up; the host has the rest."""
    faster = {
        "hbm_bandwidth": replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * FASTER),
        "compute": replace(gpu, peak_flops={dtype: flops * FASTER for dtype, flops in gpu.peak_flops.items()}),
        "links": replace(
            gpu, link_bytes_per_s=gpu.link_bytes_per_s * FASTER, pcie_bytes_per_s=gpu.pcie_bytes_per_s * FASTER
        ),
    }
    base_s = total_s(roofline_on(gpu), shapes)
    saved = {name: 1 - total_s(roofline_on(profile), shapes) / base_s for name, profile in faster.items()}
    shares = {name: min(1.0, max(0.0, share / (1 - 1 / FASTER))) for name, share in saved.items()}
    return shares | {"host": max(0.0, 1 - sum(shares.values()))}


def total_s(model: StepTimeModel, shapes: list[StepShape]) -> float:
    """Seconds of all these steps."""
    return sum(map(model.step_s, shapes))
