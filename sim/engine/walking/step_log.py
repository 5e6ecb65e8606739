"""The log of every step of an engine that walks, in the form of vLLM's recorded schedules."""

from collections.abc import Callable, Sequence
from typing import Any

from sim.engine.request import Request
from sim.engine.walking.batch import Batch
from sim.engine.walking.connector import Transfer
from sim.engine.walking.progress import Progress
from sim.engine.walking.state import State

LogRow = dict[str, Any]


class WalkLogger:
    """Opens a row when a batch is launched and hands it on when the batch has been collected; `kv_events` tell of transfers.

    With `tells_modes`, rows say more than those of the plain engine: drafts, stages, who waits and holds blocks.
    """

    def __init__(self, emit: Callable[[LogRow], None], *, tells_modes: bool = False) -> None:
        self._emit = emit
        self._tells_modes = tells_modes
        self._arrived: list[str] = []
        self._open: dict[int, LogRow] = {}
        self._num_rows = 0
        self._num_evictions = 0
        self.kv_events: list[list[Any]] = []

    def arrived(self, request: Request) -> None:
        self._arrived.append(request.request_id)

    def launched(self, state: State, batch: Batch, now_s: float, in_flight: Sequence[Batch]) -> None:
        """A batch has been launched behind others; one that does nothing has no row."""
        num_evictions, before = state.slots.pool.num_evictions, self._num_evictions
        self._num_evictions = num_evictions
        if batch.did_nothing:
            return
        row: LogRow = {
            "i": self._num_rows,
            "t": now_s,
            "start": batch.start_s,
            "end": batch.end_s,
            "n": sum(row.num_tokens for row in batch.rows),
            "ctx": sum(row.num_computed_before + row.num_tokens for row in batch.rows),
            "sched": [
                [row.progress.request.request_id, row.num_tokens, row.num_computed_before, row.num_new_blocks]
                for row in batch.rows
            ],
            "free": state.num_free_blocks,
            "arrived": self._arrived,
            "new": [request.request_id for request in batch.admitted if not request.num_preemptions],
            "resumed": [request.request_id for request in batch.admitted if request.num_preemptions],
            "preempted": [request.request_id for request in batch.preempted],
            "hits": batch.hits,
            "evicted": num_evictions - before,
            "running": [progress.request.request_id for progress in state.running],
            "waiting": [request.request_id for request in state.waiting],
            "sampled": [row.progress.request.request_id for row in batch.rows if row.samples],
        }
        if self._tells_modes:
            row |= self._modes(state, batch, in_flight)
        ghosts = [row.progress.request.request_id for row in batch.rows if row.is_ghost]
        if ghosts:
            row["ghosts"] = ghosts
        self._open[batch.call] = row
        self._arrived = []
        self._num_rows += 1

    def _modes(self, state: State, batch: Batch, in_flight: Sequence[Batch]) -> LogRow:
        return {
            "kv_holding_waiting": [request.request_id for request in state.holding],
            "drafts": {row.progress.request.request_id: row.num_drafts for row in batch.rows if row.num_drafts},
            "padded": [row.progress.request.request_id for row in batch.rows if row.num_padded],
            "k_next": batch.num_drafts_next,
            "ext": batch.external,
            "throttle": int(batch.is_throttled),
            "stages": [list(stage) for stage in batch.stages_s or [(batch.start_s, batch.end_s)]],
            "inflight": [self._open[there.call]["i"] for there in in_flight if there.rows],
        }

    def timed(self, batch: Batch) -> None:
        """When a batch runs is known only now."""
        row = self._open[batch.call]
        row["start"], row["end"] = batch.start_s, batch.end_s
        if self._tells_modes:
            row["stages"] = [list(stage) for stage in batch.stages_s]

    def collected(self, state: State, batch: Batch, finished: Sequence[Progress]) -> None:
        """A batch has come back."""
        row = self._open.pop(batch.call)
        if self._tells_modes:
            row["accepted"], row["delivered"] = batch.accepted, batch.delivered
        elif batch.delivered:
            row["delivered"] = batch.delivered
        row["finished"] = [progress.request.request_id for progress in finished]
        row["free_after"] = state.num_free_blocks
        self._emit(row)

    def event(self, now_s: float, what: str, *facts: Any) -> None:
        """Something happened to a transfer."""
        self.kv_events.append([now_s, what, *facts])

    def told(self, now_s: float, transfer: Transfer, num_free_blocks: int) -> None:
        """A transfer is over."""
        kind, request_id = transfer.kind, transfer.request.request_id
        if kind == "store":
            self.event(now_s, "store_done", request_id, transfer.num_blocks)
        elif kind == "send":
            self.event(now_s, "send_done", request_id, num_free_blocks)
        else:
            self.event(now_s, "recv_fail" if transfer.has_failed else "recv_done", request_id)

    @property
    def unreturned_rows(self) -> list[LogRow]:
        """Rows of batches that are still on the device."""
        return list(self._open.values())
