"""Where the time of a run's steps goes, operator by operator, and how near each comes to the GPU's roofline."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.deployment import Deployment
from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats
from sim.metrics.bottlenecks import sampled_shapes
from sim.metrics.step_work import NOTHING, step_work
from sim.metrics.utilization import Work, weights_dtype
from sim.steptime.parts import BOUNDS, Bound, OperatorTime


class OperatorRow(NamedTuple):
    """An operator's share of the time in which steps ran, and how much of it is for prompts; the bound that most of it has.

    FLOPs and bytes a second are those of one GPU while the operator runs; None for what moves no weights and no KV.
    """

    operator: str
    busy_share: float
    prefill_share: float
    bound: Bound
    flops_per_s: float | None
    bytes_per_s: float | None

    @property
    def arithmetic_intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops_per_s / self.bytes_per_s if self.flops_per_s and self.bytes_per_s else None


class Breakdown(NamedTuple):
    """The operators by share, and of each sampled step its arithmetic intensity and FLOPs a second on one GPU.

    `peak_flops` is that of the dtype of most weights' products, `peak_bytes_per_s` the bandwidth.
    """

    operators: tuple[OperatorRow, ...]
    steps: Floats
    peak_flops: float
    peak_bytes_per_s: float


def breakdown(deployment: Deployment, leaps: LeapRecords) -> Breakdown | None:
    """Of samples at equal distances of the busy time; None where the step times do not say where they go, or no step ran."""
    steps, samples = deployment.step_time, sampled_shapes(leaps, deployment.config)
    if not samples or not hasattr(steps, "explain"):
        return None
    model, engine = deployment.model, deployment.engine
    works = [
        step_work(model, shape, engine.kv_cache_dtype_bytes, deployment.step_times.expert_routing) for shape in samples
    ]
    explained = [steps.explain(shape) for shape in samples]
    whole_s = np.array([sum(time.prefill_s + time.decode_s for time in times) for times in explained])
    num_gpus, gpu = engine.num_gpus, deployment.gpu
    rows = _rows(explained, works, whole_s, num_gpus)
    totals = [Work.total(work.values()) for work in works]
    flops, num_bytes = (np.array(column, dtype=np.float64) for column in zip(*totals, strict=True))
    points = np.stack([flops / num_bytes, flops / whole_s / num_gpus], axis=1)
    peak = gpu.peak_flops[weights_dtype(model, gpu)]
    return Breakdown(tuple(rows), points, peak, gpu.memory_bandwidth_bytes_per_s)


def _rows(
    explained: list[list[OperatorTime]], works: list[dict[str, Work]], whole_s: Floats, num_gpus: int
) -> Iterator[OperatorRow]:
    """Each sample stands for the same time, so that what it does in a second counts."""
    shares: defaultdict[str, Floats] = defaultdict(lambda: np.zeros((2, len(BOUNDS))))
    done: defaultdict[str, Work] = defaultdict(lambda: NOTHING)
    for times, work, step_s in zip(explained, works, whole_s.tolist(), strict=True):
        for operator, bound, prefill_s, decode_s in times:
            shares[operator][:, BOUNDS.index(bound)] += (prefill_s / step_s, decode_s / step_s)
        for operator, needed in work.items():
            done[operator] = Work(
                done[operator].flops + needed.flops / step_s, done[operator].num_bytes + needed.num_bytes / step_s
            )
    for operator, share in sorted(shares.items(), key=lambda item: -item[1].sum()):
        total, moved = float(share.sum()), done.get(operator)
        if total:
            yield OperatorRow(
                operator,
                total / len(whole_s),
                float(share[0].sum()) / total,
                BOUNDS[int(np.argmax(share.sum(axis=0)))],
                moved.flops / total / num_gpus if moved else None,
                moved.num_bytes / total / num_gpus if moved else None,
            )
