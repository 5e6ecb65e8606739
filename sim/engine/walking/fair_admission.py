"""A what-if: admission that keeps the accounts of `scheduling_policy fair_share` (sim/engine/fair_share.py)."""

from sim.engine.fair_share import ANSWER_TOKEN, PROMPT_TOKEN, FairShareQueue
from sim.engine.kv_cache_manager import PrefixHit
from sim.engine.walking.admission import Admission, Outcome
from sim.engine.walking.batch import Batch
from sim.engine.walking.progress import Progress
from sim.engine.walking.state import State


class FairAdmission(Admission):
    """Charges clients for the tokens that have come back before it admits anybody, and for each prompt once, however often it is computed."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._charged: dict[Progress, int] = {}

    @property
    def _queue(self) -> FairShareQueue:
        queue = self._state.waiting
        assert isinstance(queue, FairShareQueue), "the policy's own"
        return queue

    def admit_waiting(self, batch: Batch) -> None:
        for progress, num_charged in list(self._charged.items()):
            num_answered = progress.num_tokens - progress.num_prompt
            self._queue.charge(progress.request.client, ANSWER_TOKEN * (num_answered - num_charged))
            self._charged[progress] = num_answered
            if progress.is_finished:
                del self._charged[progress]
        super().admit_waiting(batch)

    def _admit(self, progress: Progress, hit: PrefixHit, num_external: int, batch: Batch) -> Outcome:
        outcome = super()._admit(progress, hit, num_external, batch)
        if outcome is Outcome.ADMITTED:
            self._queue.admit_first(0 if progress in self._charged else PROMPT_TOKEN * progress.num_prompt)
            self._charged.setdefault(progress, 0)
        return outcome
