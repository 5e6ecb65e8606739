"""What limits a configuration: of the time it is busy, and of the time requests wait."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim.serving.cluster import ClusterRecords
from sim.serving.config import SchedulerConfig
from sim.serving.records import Floats, LeapRecords, StepRecords
from sim.specs.hardware import HardwareProfile
from sim.steptime.protocol import StepShape, StepTimeModel

RooflineOn = Callable[[HardwareProfile], StepTimeModel]

NUM_SAMPLES = 200  # steps looked at, each standing for the same share of the busy time
FASTER = 1.1  # by how much a resource is improved to see what it is worth
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


def _largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((name, share) for name, share in shares.items() if share >= WORTH_SAYING), key=lambda item: -item[1])


def limits(
    records: ClusterRecords, config: SchedulerConfig, gpu: HardwareProfile, roofline_on: RooflineOn | None
) -> Limits:
    """Read off a replay. `roofline_on` times steps on a GPU like this one; without it nothing is said about resources."""
    leaps, span_s = records.merged.leaps, records.span_s * len(records.replicas)
    queued = _queued(leaps, config, span_s)
    if roofline_on is None or not leaps.num_ran_steps:
        return Limits({}, queued)
    return Limits(_resources(_sampled_shapes(records.merged.steps, config), gpu, roofline_on), queued)


def _queued(leaps: LeapRecords, config: SchedulerConfig, span_s: float) -> dict[str, float]:
    """Time in which requests were left waiting, by what the step had run out of."""
    seconds = leaps.step_end_s[leaps.last_step] - leaps.start_s
    is_waiting = leaps.num_waiting > 0
    out_of_tokens = leaps.num_decodes + leaps.num_chunk_tokens >= config.token_budget
    out_of_seqs = ~out_of_tokens & (leaps.num_running >= config.max_running)
    causes = {
        "token_budget": is_waiting & out_of_tokens,
        "max_num_seqs": is_waiting & out_of_seqs,
        "kv_space": is_waiting & ~out_of_tokens & ~out_of_seqs,
    }
    return {name: float(seconds[where].sum()) / span_s if span_s else 0.0 for name, where in causes.items()}


def _sampled_shapes(steps: StepRecords, config: SchedulerConfig) -> list[StepShape]:
    """Steps at equal distances of busy time. Contexts are taken from the blocks in use, prompts as one chunk each."""
    busy_s: Floats = np.cumsum(steps.end_s - steps.start_s)
    at_s = (np.arange(NUM_SAMPLES) + 0.5) / NUM_SAMPLES * busy_s[-1]
    return [_shape(steps, int(row), config) for row in np.minimum(np.searchsorted(busy_s, at_s), len(steps) - 1)]


def _shape(steps: StepRecords, row: int, config: SchedulerConfig) -> StepShape:
    num_decodes, num_chunk_tokens = int(steps.num_decodes[row]), int(steps.num_chunk_tokens[row])
    held_tokens = (config.num_usable_blocks - int(steps.num_free_blocks[row])) * config.block_size
    context_tokens = max(num_decodes, held_tokens - num_chunk_tokens) if num_decodes else 0
    chunks = ((num_chunk_tokens, 0),) if num_chunk_tokens > 1 else ()
    return StepShape(num_decodes, context_tokens, chunks, num_decodes + len(chunks))


def _resources(shapes: list[StepShape], gpu: HardwareProfile, roofline_on: RooflineOn) -> dict[str, float]:
    """How much of the time goes with each resource: what a tenth more of it saves, scaled up; the host has the rest."""
    faster = {
        "hbm_bandwidth": replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * FASTER),
        "compute": replace(gpu, peak_flops={dtype: flops * FASTER for dtype, flops in gpu.peak_flops.items()}),
        "links": replace(
            gpu, link_bytes_per_s=gpu.link_bytes_per_s * FASTER, pcie_bytes_per_s=gpu.pcie_bytes_per_s * FASTER
        ),
    }
    base_s = _total_s(roofline_on(gpu), shapes)
    saved = {name: 1 - _total_s(roofline_on(profile), shapes) / base_s for name, profile in faster.items()}
    shares = {name: min(1.0, max(0.0, share / (1 - 1 / FASTER))) for name, share in saved.items()}
    return shares | {"host": max(0.0, 1 - sum(shares.values()))}


def _total_s(model: StepTimeModel, shapes: list[StepShape]) -> float:
    return sum(map(model.step_s, shapes))
