"""Calls of the scheduler that change nothing: how long they stay so, while KV is under way, and when they would for ever."""

import math

from sim.engine.walking.batch import Batch
from sim.engine.walking.connector import Connector
from sim.engine.walking.state import State
from sim.errors import ConfigError

MOST_VAIN_LOADS = 1_000
"""Calls that begin loads, without a token between them."""


class VainCalls:
    """`are_next`: the last call changed nothing, and neither will others before a transfer is over or somebody comes."""

    def __init__(self, state: State, connector: Connector) -> None:
        self._state = state
        self._connector = connector
        self._standing = (0, 0, 0)
        self._num_loads = 0
        self.are_next = False

    @property
    def until_s(self) -> float:
        """When a transfer is over, as far as is known; `-inf` where the next call may change something."""
        return self._connector.next_end_s if self.are_next else -math.inf

    def called(self, batch: Batch, now_s: float) -> None:
        """A call was made, and nothing of it has begun. Raises ConfigError where no call will ever compute a token."""
        self.are_next = False
        if not batch.is_empty:
            self.computed()
            return
        state, connector = self._state, self._connector
        last, self._standing = self._standing, (state.num_free_blocks, state.num_waiting, len(state.loading))
        begins = connector.next_end_s == 0.0
        if begins:
            self._count_load(now_s)
        if begins or last != self._standing or state.running or not batch.did_nothing:
            return
        for there in state.in_flight:
            if not there.did_nothing:
                return
        self.are_next = connector.has_pending
        if state.has_requests and not connector.has_pending:
            raise ConfigError(
                f"requests wait for ever: at {now_s:.3f} s none runs and no KV is under way, and the first of"
                f" {state.num_waiting} needs more than the {state.num_free_blocks} free KV blocks; give more KV blocks."
            )

    def computed(self) -> None:
        """Calls were made that compute something."""
        self.are_next = False
        self._num_loads = 0

    def _count_load(self, now_s: float) -> None:
        self._num_loads += 1
        if self._num_loads > MOST_VAIN_LOADS:
            raise ConfigError(
                f"KV is loaded again and again: {MOST_VAIN_LOADS:,} times without a token between them,"
                f" {self._state.num_waiting} requests waiting at {now_s:.3f} s; with a block_size of 1, a prompt of one token"
                f" is loaded whole and asked for again; give a greater block_size."
            )
