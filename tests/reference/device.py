"""The device: stages in a row, each of which runs one batch after the other."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.reference.modes import Pipeline
from tests.reference.request import Request
from tests.reference.scheduler import Batch


class StageRun(NamedTuple):
    start_s: float
    end_s: float


class Device:
    """When a batch can begin, and when each stage begins and ends it."""

    def __init__(self, pipeline: Pipeline, now_s: float) -> None:
        self._pipeline = pipeline
        self._free_s = [now_s] * pipeline.num_stages
        self._sampled_s: dict[Request, float] = {}

    def begins_s(self, batch: Batch, now_s: float) -> float:
        """When the first stage is free, and the tokens that the batch feeds in have been sampled."""
        if not batch.rows:
            return max(now_s, self._free_s[-1])
        return max([now_s, self._free_s[0], *(self._sampled_s.get(row.request, now_s) for row in batch.rows)])

    def wait(self, start_s: float, until_s: float) -> float:
        """Blocks are copied ahead of a batch, an empty one too; the first stage runs nothing else until that is done."""
        if until_s > start_s:
            self._free_s[0] = until_s
        return until_s

    def run(self, batch: Batch, start_s: float, step_s: float) -> Sequence[StageRun]:
        """The stages of a batch that begins then; an empty one takes no time."""
        if not batch.rows:
            return (StageRun(start_s, start_s),)
        runs = []
        ready_s = start_s
        for stage, stage_s in enumerate(self._pipeline.stages_s(step_s)):
            begun_s = max(ready_s, self._free_s[stage])
            self._free_s[stage] = begun_s + stage_s
            runs.append(StageRun(begun_s, begun_s + stage_s))
            ready_s = begun_s + stage_s + self._pipeline.hop_s
        for row in batch.rows:
            if row.samples:
                self._sampled_s[row.request] = runs[-1].end_s
        return runs
