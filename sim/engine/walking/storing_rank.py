"""A data-parallel rank that shares a store of KV with others, in lock step with its server's other ranks.

It waits for loads as one that hands KV over waits for what comes (sim/engine/walking/rank.py), and runs dummy batches meanwhile. Lookups that hold its scheduler
up hold all ranks up, since its batch, or its dummy batch, comes only then.
"""

from sim.engine.walking.rank import TransferringRank
from sim.engine.walking.stored import Stored
from sim.steptime.protocol import StepShape


class StoringRank(TransferringRank):
    """Loads and stores that begin with a batch without work come behind what its device still computes, as those of a lone engine do."""

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        shape = super().schedule(now_s, is_throttled=is_throttled)
        if shape is not None:
            self.rests_until_s = self._stored.called_until_s(now_s)
        return shape

    def _looks_s(self, returns_s: float) -> float:
        return self._stored.begin(self.now_s, max(self.now_s, returns_s))

    @property
    def _stored(self) -> Stored:
        assert isinstance(self._connector, Stored), "its KV goes nowhere else"
        return self._connector
