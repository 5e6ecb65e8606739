"""Prefills that wait for every n-th call, so that data-parallel ranks do them together (vLLM's prefill_schedule_interval)."""

from sim.engine.walking.state import State


class Throttle:
    """Whether a throttled call defers prefills: not while the engine is short of room for those that wait."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._is_capacity_bound = False

    def note(self) -> None:
        """A call that deferred nothing has ended: does anybody wait for room, and not for something of its own?"""
        state = self._state
        waiting = [*state.waiting, *state.holding]
        self._is_capacity_bound = any(not state.progress[request].had_to_wait for request in waiting)

    def defers(self) -> bool:
        """Somebody decodes, and nobody waits for room."""
        return not self._is_capacity_bound and not all(progress.is_prefilling for progress in self._state.running)
