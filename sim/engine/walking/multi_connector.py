"""KV from and to other engines, and kept on the CPU as well.

Mirrors vLLM's MultiConnector (kv_connector/v1/multi_connector.py, 0.32 and 0.33) of a NixlConnector and, behind it, an OffloadingConnector:
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


class MultiConnector(Connector):
    """The other engines are asked first. `_loads_from_cpu`: what was found last is there."""

    def __init__(self, remote: Remote, offload: Offload) -> None:
        self.consumes = remote.consumes
        self.drops_preempted_outputs = remote.drops_preempted_outputs
        self.recomputes_failed = remote.recomputes_failed
        self.reports_at_start = remote.reports_at_start
        self._remote = remote
        self._offload = offload
        self._loads_from_cpu = False

    def log_to(self, events: list[list[Any]]) -> None:
        self._remote.log_to(events)
        self._offload.log_to(events)

    def attach(self, slots: Slots) -> None:
        self._remote.attach(slots)
        self._offload.attach(slots)

    def added(self, progress: Progress) -> None:
        self._offload.added(progress)

    @property
    def has_pending(self) -> bool:
        return self._remote.has_pending or self._offload.has_pending

    @property
    def next_end_s(self) -> float:
        return min(self._remote.next_end_s, self._offload.next_end_s)

    @property
    def lets_decode(self) -> bool:
        return self._remote.lets_decode and self._offload.lets_decode

    def has_stored(self, progress: Progress) -> bool:
        return self._offload.has_stored(progress)

    # -- loads -----------------------------------------------------------------------------------------------------

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """All are asked, and one that cannot say yet is waited for."""
        self._offload.note_taken()
        num_remote_tokens = self._remote.find(progress, num_hit_tokens)
        num_tokens_on_cpu = self._offload.find(progress, num_hit_tokens)
        self._loads_from_cpu = num_remote_tokens == 0
        return num_tokens_on_cpu if self._loads_from_cpu or num_tokens_on_cpu < 0 else num_remote_tokens

    def num_blocks_behind(self, request: Request, num_hit_blocks: int) -> int:
        return self._offload.num_blocks_behind(request, num_hit_blocks)

    def loads_in_step(self, progress: Progress) -> bool:
        return not self._loads_from_cpu and self._remote.loads_in_step(progress)

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        if self._loads_from_cpu:
            self._offload.load(progress, num_hit_tokens, num_tokens)
        else:
            self._remote.load(progress, num_hit_tokens, num_tokens)
            self._offload.hears_of_other_load(progress)

    # -- what becomes of requests ----------------------------------------------------------------------------------

    def preempted(self, progress: Progress) -> None:
        self._offload.preempted(progress)

    def computes(self, progress: Progress, num_tokens: int) -> None:
        self._offload.computes(progress, num_tokens)

    def close_pass(self) -> None:
        self._offload.close_pass()

    def ending(self, progress: Progress) -> None:
        self._offload.ending(progress)

    def finished(self, progress: Progress, now_s: float) -> bool:
        self._offload.finished(progress, now_s)
        return self._remote.finished(progress, now_s)

    def aborted(self, progress: Progress) -> None:
        self._offload.aborted(progress)

    def lose_all(self) -> list[Transfer]:
        return [*self._remote.lose_all(), *self._offload.lose_all()]

    # -- the worker ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, start_s: float) -> float:
        """What comes from other engines is asked for once blocks that are still being stored are free."""
        return self._remote.begin(now_s, self._offload.begin(now_s, start_s))

    def reported(self, until_s: float) -> list[Transfer]:
        over = [*self._remote.reported(until_s), *self._offload.reported(until_s)]
        return sorted(over, key=completion_order)

    def records(self) -> OffloadRecords | None:
        return self._offload.records()
