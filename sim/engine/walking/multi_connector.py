"""KV from and to other engines, kept on the CPU, and in a store: two of these, or all.

Mirrors vLLM's MultiConnector (kv_connector/v1/multi_connector.py, 0.32 and 0.33) of a NixlConnector, an OffloadingConnector and a MooncakeStoreConnector, in this order:
a request loads from the first that has something, and all are told what becomes of it. Deliberate differences: before 0.33, others
may wait for stores whose blocks a pull takes that fails, or beside several MTP modules; of a prompt whose end such modules leave to the
decode side, vLLM's tier knows the end as well.
"""

from collections.abc import Sequence
from typing import Any

from sim.engine.records import OffloadRecords
from sim.engine.request import Request
from sim.engine.walking.connector import Connector, Transfer, completion_order
from sim.engine.walking.offload import Offload
from sim.engine.walking.progress import Progress
from sim.engine.walking.remote import Remote
from sim.engine.walking.slots import KeptState, Slots
from sim.engine.walking.stored import Stored


class MultiConnector(Connector):
    """`_kept` are those where the engine's own KV is, `_chosen` who had something of the request that was looked for last."""

    def __init__(self, remote: Remote | None, tier: Offload | None, store: Stored | None) -> None:
        self._all: list[Connector] = [one for one in (remote, tier, store) if one is not None]
        self._kept: list[Connector] = [one for one in (tier, store) if one is not None]
        self._remote, self._tier, self._store = remote, tier, store
        first = self._all[0]
        self.consumes = first.consumes
        self.drops_preempted_outputs = first.drops_preempted_outputs
        self.recomputes_failed = first.recomputes_failed
        self.reports_at_start = first.reports_at_start
        self._chosen = first

    def log_to(self, events: list[list[Any]]) -> None:
        for one in self._all:
            one.log_to(events)

    def attach(self, slots: Slots) -> None:
        for one in self._all:
            one.attach(slots)

    def added(self, progress: Progress) -> None:
        for one in self._kept:
            one.added(progress)

    @property
    def has_pending(self) -> bool:
        return any(one.has_pending for one in self._all)

    @property
    def next_end_s(self) -> float:
        return min([one.next_end_s for one in self._all])

    @property
    def lets_decode(self) -> bool:
        return all(one.lets_decode for one in self._all)

    def has_stored(self, progress: Progress) -> bool:
        return all(one.has_stored(progress) for one in self._kept)

    # -- loads -----------------------------------------------------------------------------------------------------

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """All are asked, as far as to one that cannot say yet and is waited for."""
        if self._tier is not None:
            self._tier.note_taken()
        found = 0
        for one in self._all:
            num_tokens = one.find(progress, num_hit_tokens)
            if num_tokens < 0:
                return num_tokens
            if num_tokens and not found:
                found, self._chosen = num_tokens, one
        return found

    def may_find(self, progress: Progress) -> bool:
        return all(one.may_find(progress) for one in self._all)

    def num_blocks_behind(self, request: Request, num_hit_blocks: int) -> int:
        return 0 if self._tier is None else self._tier.num_blocks_behind(request, num_hit_blocks)

    def loads_in_step(self, progress: Progress) -> bool:
        return self._chosen.loads_in_step(progress)

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        self._chosen.load(progress, num_hit_tokens, num_tokens)
        for one in self._all:
            if one is not self._chosen:
                one.hears_of_other_load(progress, num_hit_tokens + num_tokens)

    # -- what becomes of requests ----------------------------------------------------------------------------------

    def preempted(self, progress: Progress) -> None:
        for one in self._kept:
            one.preempted(progress)

    def computes(self, progress: Progress, num_tokens: int) -> None:
        for one in self._kept:
            one.computes(progress, num_tokens)

    def close_pass(self, kept_states: Sequence[KeptState]) -> None:
        for one in self._kept:
            one.close_pass(kept_states)

    def ending(self, progress: Progress) -> None:
        for one in self._kept:
            one.ending(progress)

    def finished(self, progress: Progress, now_s: float) -> bool:
        are_held = [one.finished(progress, now_s) for one in self._all]
        return any(are_held)

    def aborted(self, progress: Progress) -> None:
        for one in self._kept:
            one.aborted(progress)

    def lose_all(self) -> list[Transfer]:
        return [transfer for one in self._all for transfer in one.lose_all()]

    # -- the worker ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, start_s: float) -> float:
        """What comes from elsewhere is asked for once blocks that are still being stored are free."""
        if self._store is not None:
            start_s = max(start_s, self._store.called_until_s(now_s))
        for one in self._kept:
            start_s = one.begin(now_s, start_s)
        return start_s if self._remote is None else self._remote.begin(now_s, start_s)

    def reported(self, until_s: float) -> list[Transfer]:
        over = [transfer for one in self._all for transfer in one.reported(until_s)]
        return sorted(over, key=completion_order)

    def records(self) -> OffloadRecords | None:
        return self._tier.records() if self._tier else None

    def stored_records(self) -> OffloadRecords | None:
        return self._store.stored_records() if self._store else None
