"""A what-if: static batching, as servers did before continuous batching. No vLLM does this."""

from sim.engine.walking.admission import Admission
from sim.engine.walking.batch import Batch
from sim.engine.walking.progress import Progress
from sim.engine.walking.state import State


class StaticBatching(Admission):
    """Those who wait when nobody runs are a batch, as far as there are seats; nobody else joins before all of it have finished."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._seats = self._max_running
        self._members: list[Progress] = []

    def admit_waiting(self, batch: Batch) -> None:
        """Only members of the batch: they come first in the queue, those that were preempted too."""
        state = self._state
        self._members = [member for member in self._members if not member.is_finished]
        if not self._members:
            line = list(state.waiting)[: self._seats]
            self._members = [state.progress[request] for request in line]
        self._max_running = len(self._members)
        super().admit_waiting(batch)
