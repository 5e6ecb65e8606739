"""A data-parallel rank whose KV comes from other engines or goes there, in lock step with its server's other ranks.

Mirrors DPEngineCoreProc.run_busy_loop (v1/engine/core.py, 0.32) around the engine's step:

* `step` or `step_with_batch_queue` calls the scheduler while `Scheduler.has_requests()`: also where requests only wait for KV, and where none is
  left but blocks are held until they have been sent. A batch without work goes to the worker all the same (`kv_connector_no_forward`), which
  asks for KV and looks for what has come at once, waits for no other rank, and is back in this call, or, behind another batch, in the next.
* `_process_engine_step` sleeps for a millisecond after a call that ran nothing while `has_requests()`; only then the loop runs the dummy batch for
  which the other ranks wait.
* The wave goes on for `has_unfinished_requests()`: those that wait for KV count, those that hold blocks until they are sent do not. When it
  is over, ranks that hold some poll by themselves, without a dummy batch.

Steps are those of that loop, driven with vLLM's schedulers (tests/golden/waiting_ranks.json). Deliberate differences: after a wave, the
ranks of a server poll at the same instants; older versions are taken to do as 0.32 does.
"""

import math
from collections.abc import Sequence

from sim.engine.plans import UNCERTAIN, DecodesAhead
from sim.engine.request import Request
from sim.engine.walking.batch import Batch
from sim.engine.walking.core import WalkingCore
from sim.steptime.protocol import StepShape


class WalkingRank(WalkingCore):
    """One of any mode. Blocks that windows pass are counted by calls that all compute something, as those of ranks do not."""

    counts_windows = False

    def _end_aborted(self, before_s: float) -> None:
        """vLLM takes a batch that computes nothing back as the next call begins, which looks at aborts itself."""
        if before_s == math.inf or not self._in_flight[0].is_empty:
            super()._end_aborted(before_s)


class TransferringRank(WalkingRank):
    """`_unheard` is the batch of an earlier call that computed nothing, in flight until what its worker saw is told; nobody waits for it."""

    transfers_kv = True
    _unheard: Batch | None = None
    _ended: Sequence[Request] = ()

    @property
    def has_transfers(self) -> bool:
        return self._connector is not None and self._connector.has_pending

    @property
    def is_called(self) -> bool:
        """Whether a step calls its scheduler."""
        return self.has_requests or self.has_transfers

    @property
    def awaits_batch(self) -> bool:
        """Also one whose requests have all ended, since more drafts were accepted than was known when it was launched."""
        return self._has_work_in_flight

    @property
    def _has_work_in_flight(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0] is not self._unheard

    @property
    def next_transfer_end_s(self) -> float:
        return self._connector.next_end_s if self._connector is not None else math.inf

    @property
    def decodes(self) -> DecodesAhead:
        return UNCERTAIN if self.has_transfers else super().decodes

    @property
    def next_collect_s(self) -> float:
        """When the oldest batch that computes something comes back."""
        return super().next_collect_s if self._has_work_in_flight else math.inf

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Call the scheduler; what computes nothing goes to the worker at once, and the rank rests before its dummy batch."""
        self.now_s = self.rests_until_s = now_s
        self._scheduled = None
        batch = self._schedule(is_throttled=is_throttled) if self.is_called else None
        earlier, self._unheard = self._unheard, None
        if earlier is not None:
            self._hear_with(earlier)
        if batch is None:
            if self.awaits_batch:  # its requests have ended before it came back
                self.rests_until_s = self._in_flight[0].end_s
            return None
        if not batch.is_empty:
            self._scheduled = batch
            return batch.shape
        self._ask_with(batch)
        return None

    def _ask_with(self, batch: Batch) -> None:
        """The worker gets a batch without work."""
        returns_s = self._in_flight[-1].end_s if self._in_flight else self.now_s  # the call waits for the batch before
        batch.start_s = batch.end_s = self._looks_s(returns_s)
        self._enter(batch)
        if self._most_in_flight == 1:
            self._hear_with(batch)
        else:
            self._unheard = batch
        if self.state.has_work:
            self.rests_until_s = max(returns_s, batch.end_s) + self.idle_sleep_s

    def _looks_s(self, returns_s: float) -> float:  # noqa: ARG002 - one with a CPU tier has to know
        """The worker asks for KV, and looks for what has come, with a batch without work behind one that returns then: when it looks."""
        assert self._connector is not None, "KV is transferred"
        return self._connector.begin(self.now_s, self.now_s)

    def _hear_with(self, batch: Batch) -> None:
        """What the worker saw with a batch that computed nothing."""
        self._ended = [*self._ended, *self._take_in(batch)]

    def ended(self) -> Sequence[Request]:
        ended, self._ended = self._ended, ()
        return ended

    def run(self, start_s: float, duration_s: float) -> bool:
        if self._scheduled is not None:
            start_s = self._begins_s(start_s)
        return super().run(start_s, duration_s)

    def _begins_s(self, start_s: float) -> float:
        """The worker begins a batch of that time, and what has been asked for."""
        assert self._connector is not None, "KV is transferred"
        return self._connector.begin(self.now_s, start_s)
