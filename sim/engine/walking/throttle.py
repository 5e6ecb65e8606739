"""Calls that defer prefills, so that decodes have their steps to themselves (vLLM's prefill_schedule_interval).

Data-parallel ranks prefill together, in every n-th step of a wave, which their group counts. An engine by itself does so again n steps after
the last one that prefilled, since vLLM 0.33.
"""

from sim.engine.walking.batch import Batch
from sim.engine.walking.state import State


class Throttle:
    """Whether a call defers prefills: not while the engine is short of room for those that wait."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._local_interval = state.modes.local_prefill_interval
        self._is_used = state.modes.throttle_interval > 0 or self._local_interval > 1
        self._num_steps = 0
        self._last_prefill_step = -self._local_interval
        self._is_capacity_bound = False

    def defers(self, *, is_throttled: bool) -> bool:
        """It is too early, somebody decodes, and nobody waits for room."""
        is_early = self._num_steps + 1 - self._last_prefill_step < self._local_interval
        if self._is_capacity_bound or not (is_throttled or is_early):
            return False
        return not all(progress.is_prefilling for progress in self._state.running)

    def note(self, batch: Batch) -> None:
        """A call has granted its tokens. Where it deferred nothing: does anybody wait for room, and not for something of its own?"""
        if not self._is_used:
            return
        if not batch.is_empty:
            self._num_steps += 1
        if batch.has_unfinished_prefill or batch.admits_prefill:
            self._last_prefill_step = self._num_steps
        if not (batch.defers_prefills or batch.preempted):
            state = self._state
            waiting = [*state.waiting, *state.holding]
            self._is_capacity_bound = any(not state.progress[request].had_to_wait for request in waiting)
