"""KV from and to other engines, and kept on the CPU or in a store as well.

Mirrors vLLM's MultiConnector (kv_connector/v1/multi_connector.py, 0.32 and 0.33) of a NixlConnector and, behind it, an OffloadingConnector or a MooncakeStoreConnector:
a request loads from the first that has something, and both are told what becomes of it. Deliberate differences: before 0.33, others
may wait for stores whose blocks a pull takes that fails, or beside several MTP modules; of a prompt whose end such modules leave to the
decode side, vLLM's tier knows the end as well.
"""

from typing import Any

from sim.engine.records import OffloadRecords
from sim.engine.request import Request
from sim.engine.walking.connector import Connector, Transfer, completion_order
from sim.engine.walking.offload import Offload
from sim.engine.walking.progress import Progress
from sim.engine.walking.remote import Remote
from sim.engine.walking.slots import Slots
from sim.engine.walking.stored import Stored


class MultiConnector(Connector):
    """The other engines are asked first. `_loads_from_kept`: what was found last is what an engine `kept`."""

    def __init__(self, remote: Remote, kept: Offload | Stored) -> None:
        self.consumes = remote.consumes
        self.drops_preempted_outputs = remote.drops_preempted_outputs
        self.recomputes_failed = remote.recomputes_failed
        self.reports_at_start = remote.reports_at_start
        self._remote = remote
        self._kept = kept
        self._loads_from_kept = False

    def log_to(self, events: list[list[Any]]) -> None:
        self._remote.log_to(events)
        self._kept.log_to(events)

    def attach(self, slots: Slots) -> None:
        self._remote.attach(slots)
        self._kept.attach(slots)

    def added(self, progress: Progress) -> None:
        self._kept.added(progress)

    @property
    def has_pending(self) -> bool:
        return self._remote.has_pending or self._kept.has_pending

    @property
    def next_end_s(self) -> float:
        return min(self._remote.next_end_s, self._kept.next_end_s)

    @property
    def lets_decode(self) -> bool:
        return self._remote.lets_decode and self._kept.lets_decode

    def has_stored(self, progress: Progress) -> bool:
        return self._kept.has_stored(progress)

    # -- loads -----------------------------------------------------------------------------------------------------

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """All are asked, and one that cannot say yet is waited for."""
        self._kept.note_taken()
        num_remote_tokens = self._remote.find(progress, num_hit_tokens)
        num_tokens_kept = self._kept.find(progress, num_hit_tokens)
        self._loads_from_kept = num_remote_tokens == 0
        return num_tokens_kept if self._loads_from_kept or num_tokens_kept < 0 else num_remote_tokens

    def may_find(self, progress: Progress) -> bool:
        return self._kept.may_find(progress)

    def num_blocks_behind(self, request: Request, num_hit_blocks: int) -> int:
        return self._kept.num_blocks_behind(request, num_hit_blocks)

    def loads_in_step(self, progress: Progress) -> bool:
        return not self._loads_from_kept and self._remote.loads_in_step(progress)

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        if self._loads_from_kept:
            self._kept.load(progress, num_hit_tokens, num_tokens)
        else:
            self._remote.load(progress, num_hit_tokens, num_tokens)
            self._kept.hears_of_other_load(progress)

    # -- what becomes of requests ----------------------------------------------------------------------------------

    def preempted(self, progress: Progress) -> None:
        self._kept.preempted(progress)

    def computes(self, progress: Progress, num_tokens: int) -> None:
        self._kept.computes(progress, num_tokens)

    def close_pass(self) -> None:
        self._kept.close_pass()

    def ending(self, progress: Progress) -> None:
        self._kept.ending(progress)

    def finished(self, progress: Progress, now_s: float) -> bool:
        self._kept.finished(progress, now_s)
        return self._remote.finished(progress, now_s)

    def aborted(self, progress: Progress) -> None:
        self._kept.aborted(progress)

    def lose_all(self) -> list[Transfer]:
        return [*self._remote.lose_all(), *self._kept.lose_all()]

    # -- the worker ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, start_s: float) -> float:
        """What comes from other engines is asked for once blocks that are still being stored are free."""
        return self._remote.begin(now_s, self._kept.begin(now_s, start_s))

    def reported(self, until_s: float) -> list[Transfer]:
        over = [*self._remote.reported(until_s), *self._kept.reported(until_s)]
        return sorted(over, key=completion_order)

    def records(self) -> OffloadRecords | None:
        return self._kept.records()
