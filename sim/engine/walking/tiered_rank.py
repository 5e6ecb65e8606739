"""A data-parallel rank that keeps KV on the CPU as well, in lock step with its server's other ranks.

It waits for loads as one that hands KV over waits for what comes (sim/engine/walking/rank.py), and runs dummy batches meanwhile. Its scheduler is
called also to offer what has just been computed, and while stores are under way, which keep no wave alive: they go on while all pause. A batch
that takes blocks which are still being stored waits for that before it meets the others (`handle_preemptions` in v1/worker/gpu_model_runner.py of
vLLM 0.32), so that they wait as well.

Deliberate difference: a request wakes ranks that sleep between two calls while all pause.
"""

import math

from sim.engine.plans import UNCERTAIN, DecodesAhead
from sim.engine.records import EngineRecords
from sim.engine.walking.rank import TransferringRank


class TieredRank(TransferringRank):
    """It hears of its own transfers alone, so that nobody has to wait for its calls while all pause: `poll_before` makes them."""

    @property
    def is_called(self) -> bool:
        return self.state.has_work

    @property
    def has_transfers(self) -> bool:
        """None that other engines know of."""
        return False

    @property
    def awaits_batch(self) -> bool:
        """While all pause, what it has in flight comes back with its own calls."""
        return False

    @property
    def decodes(self) -> DecodesAhead:
        return UNCERTAIN if self.state.has_work else super().decodes

    def _looks_s(self, returns_s: float) -> float:
        """Stores copy what is computed, and loads come behind them in the worker's queue."""
        assert self._connector is not None, "KV is transferred"
        return self._connector.begin(self.now_s, max(self.now_s, returns_s))

    def prepare(self, from_s: float, free_s: float) -> float:
        """Transfers begin with the batch, which may have to wait for blocks that are still being stored."""
        ready_s = super().prepare(from_s, free_s)
        if self._scheduled is None or self._connector is None:
            return ready_s
        start_s = max(ready_s, free_s)
        begins_s = self._connector.begin(self.now_s, start_s)
        return begins_s if begins_s > start_s else ready_s

    def _begins_s(self, start_s: float) -> float:
        """All are ready."""
        return start_s

    # -- while all pause -------------------------------------------------------------------------------------------

    def pause(self, now_s: float) -> None:
        self.now_s = now_s

    def poll_before(self, until_s: float) -> None:
        self._unheard = None
        self.advance(until_s)
        self._unheard = self._in_flight[0] if self._in_flight and self._in_flight[0].is_empty else None

    def records(self) -> EngineRecords:
        """What has been recorded, once all is stored."""
        self.poll_before(math.inf)
        return super().records()
