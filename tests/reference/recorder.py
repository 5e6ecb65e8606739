"""Facts of a run, appended as they happen."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.engine.columns import DraftColumns
from sim.engine.records import Floats, Ints, Records, RequestRecords, SpeculationRecords
from sim.steptime.protocol import StepShape
from tests.listed_gaps import ListedGaps
from tests.reference.request import Request
from tests.reference.scheduler import Batch, Scheduler
from tests.single_steps import note_overlaps, single_steps

StepLog = Callable[[dict[str, Any]], None]


class Recorder:
    """Columns of steps and inter-token gaps; with a `step_log`, also one dict a step as conformance compares them,
    which says more where it `logs_modes` that only this engine has."""

    def __init__(self, step_log: StepLog | None = None, *, logs_modes: bool = False) -> None:
        self._times = {name: array("d") for name in ("start_s", "end_s")}
        self._counts = {
            name: array("q")
            for name in (
                "num_decodes",
                "decode_context_tokens",
                "num_chunk_tokens",
                "num_chunks",
                "num_sampled",
                "num_running",
                "num_waiting",
                "num_free_blocks",
                "num_preempted",
            )
        }
        self._chunks: list[tuple[int, int]] = []
        self._batches: list[Batch] = []
        self._gaps: Counter[float] = Counter()
        self._stage_busy_s: list[float] = []
        self._step_log = step_log
        self._logs_modes = logs_modes
        self._arrived: list[str] = []
        self._num_logged = 0
        self._num_preempted = 0

    def preempted(self, batch: Batch) -> None:
        """Whom the pass has preempted, counted with the next step that runs tokens, mostly its own."""
        self._num_preempted += len(batch.preempted)

    def arrived(self, request: Request) -> None:
        if self._step_log:
            self._arrived.append(request.request_id)

    def step(self, batch: Batch, shape: StepShape, stages: Sequence[tuple[float, float]], scheduler: Scheduler) -> None:
        """A step that runs tokens, at its launch, with when it begins and ends on each stage."""
        self.launched(batch, shape, scheduler)
        self.ran(stages)

    def ran(self, stages: Sequence[tuple[float, float]]) -> None:
        """When a step that was launched begins and ends on each stage; steps run in the order of their launches."""
        self._times["start_s"].append(stages[0][0])
        self._times["end_s"].append(stages[-1][1])
        before_s = self._stage_busy_s or [0.0] * len(stages)
        self._stage_busy_s = [
            busy_s + end_s - start_s for busy_s, (start_s, end_s) in zip(before_s, stages, strict=True)
        ]

    def launched(self, batch: Batch, shape: StepShape, scheduler: Scheduler) -> None:
        """A step that runs tokens, at its launch."""
        self._batches.append(batch)
        facts = (
            shape.num_decodes,
            shape.decode_context_tokens,
            shape.num_chunk_tokens,
            len(shape.chunks),
            shape.num_sampled,
            len(scheduler.running),
            scheduler.num_waiting,
            scheduler.kv.pool.num_free_blocks,
            self._num_preempted,
        )
        self._num_preempted = 0
        self._chunks.extend(shape.chunks)
        for column, fact in zip(self._counts.values(), facts, strict=True):
            column.append(fact)

    def token(self, request: Request, now_s: float) -> None:
        """One more token of the request has been returned."""
        if request.last_token_s is None:
            request.first_token_s = now_s
        else:
            self._gaps[now_s - request.last_token_s] += 1
        request.last_token_s = now_s

    def open_log_row(
        self,
        batch: Batch,
        times_s: tuple[float, float, float],
        scheduler: Scheduler,
        stages: Sequence[tuple[float, float]] = (),
        in_flight: Sequence[dict[str, Any] | None] = (),
    ) -> dict[str, Any] | None:
        """The log row of a pass at its launch; `close_log_row` completes it."""
        if self._step_log is None:
            return None
        running, waiting, holding = scheduler.queue_ids()
        row: dict[str, Any] = {
            "i": self._num_logged,
            "t": times_s[0],
            "start": times_s[1],
            "end": times_s[2],
            "n": batch.num_tokens,
            "ctx": sum(r.num_computed_before + r.num_tokens for r in batch.rows),
            "sched": [
                [r.request.request_id, r.num_tokens, r.num_computed_before, r.num_new_blocks] for r in batch.rows
            ],
            "free": scheduler.kv.pool.num_free_blocks,
            "arrived": self._arrived,
            "new": [r.request_id for r in batch.admitted if r.num_preemptions == 0],
            "resumed": [r.request_id for r in batch.admitted if r.num_preemptions],
            "preempted": [r.request_id for r in batch.preempted],
            "hits": batch.hits,
            "evicted": batch.num_evictions,
            "running": running,
            "waiting": waiting,
            "sampled": [r.request.request_id for r in batch.rows if r.samples],
        }
        if self._logs_modes:
            row |= {
                "kv_holding_waiting": holding,
                "drafts": {r.request.request_id: r.num_drafts for r in batch.rows if r.num_drafts},
                "padded": [r.request.request_id for r in batch.rows if r.is_padded],
                "k_next": batch.num_drafts_next,
                "ext": batch.external,
                "throttle": int(batch.is_throttled),
                "stages": [list(stage) for stage in stages],
                "inflight": [before["i"] for before in in_flight if before is not None and before["sched"]],
            }
        if batch.ghosts:
            row["ghosts"] = [r.request.request_id for r in batch.rows if r.request in batch.ghosts]
        self._arrived = []
        self._num_logged += 1
        return row

    def close_log_row(
        self, row: dict[str, Any] | None, batch: Batch, finished: Sequence[Request], free_after: int
    ) -> None:
        if row is None or self._step_log is None:
            return
        if self._logs_modes:
            row["accepted"], row["delivered"] = batch.accepted, batch.delivered
        row["finished"] = [request.request_id for request in finished]
        row["free_after"] = free_after
        self._step_log(row)

    def records(self, requests: Sequence[Request], scheduler: Scheduler) -> Records:
        """Everything recorded, in columns."""
        if self._num_preempted and self._counts["num_preempted"]:
            self._counts["num_preempted"][-1] += self._num_preempted  # cut short before another step
        columns: dict[str, Sequence[float]] = {"start_s": self._times["start_s"], **self._counts}
        leaps = single_steps(columns, self._times["end_s"], self._chunks)
        if len(self._stage_busy_s) > 1:
            note_overlaps(leaps, self._overlap_s())
        if scheduler.num_drafts:
            leaps.note_drafts(self._drafts())
        return Records(
            requests=_request_records(requests),
            leaps=leaps,
            gaps=ListedGaps(dict(sorted(self._gaps.items()))),
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_evictions=scheduler.kv.pool.num_evictions,
            offload=None,
            stored=None,
            lora=None,
            swaps=None,
            speculation=self._speculation(scheduler.num_drafts) if scheduler.num_drafts else None,
            stage_busy_s=tuple(self._stage_busy_s) if len(self._stage_busy_s) > 1 else None,
        )

    def _drafts(self) -> DraftColumns:
        verified = [[row.num_drafts for row in batch.rows] for batch in self._batches]
        accepted = [list(batch.accepted.values()) for batch in self._batches]
        return DraftColumns(_ints(list(map(sum, verified))), _ints(list(map(sum, accepted))))

    def _speculation(self, most: int) -> SpeculationRecords:
        """Of verifications that came back and were no padding."""
        counts, num_draft_tokens = Counter[int](), 0
        for batch in self._batches:
            for row in batch.rows:
                if row.num_drafts and not row.is_padded and row.request.request_id in batch.accepted:
                    counts[batch.accepted[row.request.request_id]] += 1
                    num_draft_tokens += row.num_drafts
        return SpeculationRecords(tuple(counts[number] for number in range(most + 1)), num_draft_tokens)

    def _overlap_s(self) -> Floats:
        """How much of each step the latest end of all before it cuts off."""
        found, latest_s = [], -math.inf
        for start_s, end_s in zip(self._times["start_s"], self._times["end_s"], strict=True):
            found.append(max(0.0, latest_s - start_s))
            latest_s = max(latest_s, end_s)
        return _floats(found)


def _request_records(requests: Sequence[Request]) -> RequestRecords:
    return RequestRecords(
        arrival_s=_floats([request.arrival_s for request in requests]),
        prompt_tokens=_ints([request.num_prompt_tokens for request in requests]),
        output_tokens=_ints([request.max_tokens for request in requests]),
        generated_tokens=_ints([request.num_output_tokens for request in requests]),
        first_scheduled_s=_times([request.first_scheduled_s for request in requests]),
        first_token_s=_times([request.first_token_s for request in requests]),
        finish_s=_times([request.finish_s for request in requests]),
        num_preemptions=_ints([request.num_preemptions for request in requests]),
        num_cached_tokens=_ints([request.num_cached_tokens or 0 for request in requests]),
        rejected={row: request.rejected for row, request in enumerate(requests) if request.rejected},
        failed={row: request.failed for row, request in enumerate(requests) if request.failed},
    )


def _times(values: Sequence[float | None]) -> Floats:
    return _floats([float("nan") if value is None else value for value in values])


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
