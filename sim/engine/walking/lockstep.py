"""Data-parallel ranks of a mixture of experts: they step together, and whoever has no work runs a dummy batch.

Mirrors vLLM's DPEngineCoreProc (v1/engine/core.py, 0.32) under sync scheduling. A wave of steps begins with a request; after
the first step and after every `sync_interval`-th the ranks look at each other, and the wave ends if none has work left.
"""

from collections.abc import Sequence

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.walking.batch import Batch
from sim.engine.walking.modes import PLAIN, Modes
from sim.engine.walking.progress import Progress
from sim.engine.walking.scheduler import Scheduler
from sim.steptime.protocol import StepShape, StepTimeModel

DUMMY_BATCH = StepShape(num_decodes=1, decode_context_tokens=1, chunks=(), num_sampled=1)


class LockStep:
    """A scheduler for each rank. `wave` counts waves, `counter` the steps of the current one; while `is_paused` none is under way.

    With a `prefill_interval`, prefills may begin or go on in every so many-th step of a wave alone.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        num_ranks: int,
        *,
        num_keys: int = 0,
        sync_interval: int = 16,
        prefill_interval: int = 1,
    ) -> None:
        modes = Modes(throttle_interval=prefill_interval) if prefill_interval > 1 else PLAIN
        self.schedulers = [Scheduler(config, modes, None, num_keys) for _ in range(num_ranks)]
        self._step_time = step_time
        self._sync_interval = sync_interval
        self._prefill_interval = prefill_interval
        self._batches: list[Batch] = []
        self.wave = 0
        self.counter = 0
        self.is_paused = True

    def add_request(self, request: Request, rank: int) -> None:
        """A rank gets a request; if none was under way, a wave begins."""
        self.is_paused = False
        self.schedulers[rank].add_request(request)

    def launch(self, now_s: float) -> float:
        """All ranks begin a step; when it ends, which is when the longest of them does."""
        is_throttled = self.counter % self._prefill_interval != 0
        self._batches = [scheduler.schedule(is_throttled=is_throttled) for scheduler in self.schedulers]
        return now_s + max(self._step_time.step_s(batch.shape or DUMMY_BATCH) for batch in self._batches)

    @property
    def batches(self) -> Sequence[Batch | None]:
        """What the step runs, by rank; None where it is a dummy."""
        return [None if batch.did_nothing else batch for batch in self._batches]

    def collect(self, now_s: float) -> list[list[Progress]]:
        """The step has ended: who has finished, by rank."""
        ranks = zip(self.schedulers, self._batches, strict=True)
        finished = [scheduler.take_in(batch, now_s) for scheduler, batch in ranks]
        self.counter += 1
        looks = self.counter == 1 or self.counter % self._sync_interval == 0
        if looks and not any(scheduler.state.has_requests for scheduler in self.schedulers):
            self.wave, self.counter, self.is_paused = self.wave + 1, 0, True
        return finished
