"""A what-if: a preempted request's KV is swapped out to host memory, and back when it resumes. vLLM's V1 engine recomputes.

Follows the engine before V1 (vllm/core/scheduler.py of 0.4 to 0.6: `_preempt_by_swap`, `_schedule_swapped`, and
`_schedule_default`, in which nobody who waits comes before those who are swapped) under the passes and the victims of V1. Copies
go ahead of the batch whose pass decides on them, as that engine's worker made them. Deliberate differences: where swap space is
full a request is recomputed, where that engine gave up ("Aborted due to the lack of CPU swap space"); and who has tokens in
flight, which that engine never had, comes back after they have.
"""

from sim.engine.config import SchedulerConfig
from sim.engine.queues import FcfsQueue
from sim.engine.records import SwapRecords
from sim.engine.request import RequestStatus
from sim.engine.unlimited import UNLIMITED
from sim.engine.walking.admission import Admission, Outcome
from sim.engine.walking.batch import Batch
from sim.engine.walking.modes import Modes
from sim.engine.walking.progress import Progress
from sim.engine.walking.state import State
from sim.memory.swap_space import SwapSpace


class SwappingState(State):
    """Those who are swapped are `holding`, in the order in which they were swapped out."""

    def __init__(self, config: SchedulerConfig, modes: Modes, num_keys: int, space: SwapSpace) -> None:
        super().__init__(config, modes, num_keys, None)
        self.holding = FcfsQueue()
        self._space = space
        self._num_to_copy = 0
        self._num_swapped_out = 0
        self._num_blocks_copied = 0
        self._copy_s = 0.0
        self._most_used = 0

    def preempt(self, progress: Progress) -> None:
        """Swap out, if there is room: what was computed is kept, and blocks that can be found stay so until they are taken."""
        num_blocks = self._num_blocks(progress)
        num_used = num_blocks + sum([self._num_blocks(self.progress[request]) for request in self.holding])
        if num_used > self._space.num_blocks:
            super().preempt(progress)
            return
        self.leave_running(progress)
        progress.request.status = RequestStatus.SWAPPED
        progress.next_full = UNLIMITED
        self.holding.add(progress.request)
        self._num_to_copy += num_blocks
        self._num_swapped_out += 1
        self._most_used = max(self._most_used, num_used)

    def _num_blocks(self, progress: Progress) -> int:
        return -(-progress.num_computed // self.config.block_size)

    def start(self, progress: Progress, num_hit_tokens: int, num_external: int) -> None:
        if progress.request.status is RequestStatus.SWAPPED:
            self._num_to_copy += self._num_blocks(progress)
        super().start(progress, num_hit_tokens, num_external)

    def drain_copy_s(self) -> float:
        """How long it takes to copy what has been swapped since the last time that this was asked."""
        copy_s = self._num_to_copy * self._space.block_copy_s
        self._num_blocks_copied += self._num_to_copy
        self._copy_s += copy_s
        self._num_to_copy = 0
        return copy_s

    def records(self) -> SwapRecords:
        """What has been swapped so far."""
        num_bytes = self._num_blocks_copied * self._space.block_bytes
        return SwapRecords(self._num_swapped_out, num_bytes, self._copy_s, self._most_used / self._space.num_blocks)


class SwapIn(Admission):
    """Admits the swapped first; the first of them that cannot come in stops all others."""

    def _try(self, progress: Progress, batch: Batch, loras: set[int]) -> Outcome:
        if progress.request.status is RequestStatus.SWAPPED and progress.num_samples_in_flight:
            return Outcome.STOPS
        return super()._try(progress, batch, loras)
