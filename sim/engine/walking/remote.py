"""KV from and to other engines, and from a store that others fill.

Mirrors nixl_connector.py (pull mode) and a synchronous store (0.32). Deliberate difference: what is where, and how long it
takes to come, is a peer's to say.
"""

from typing import Protocol

from sim.engine.request import Request
from sim.engine.walking.connector import Connector, Transfer, first_end_s, over_by
from sim.engine.walking.progress import Progress
from sim.specs.kv_transfer import KVTransferConfig


class Peer(Protocol):
    """What lies outside of an engine: other engines, stores, and the links to them.

    The engine asks, within its own calls, and never waits for a peer: `begin` notes a transfer, whose `start_s` may lie ahead,
    and somebody sets its `end_s` in time and wakes the replica, which may sleep where polls would change nothing.
    """

    def num_tokens_elsewhere(self, request: Request) -> int:
        """Leading tokens of a request that can be had: of a store whole blocks, of a prefill its whole prompt, once."""
        ...

    def loads_in_step(self, request: Request) -> bool:
        """Whether they come within the step that asks for them, at no time of their own."""
        ...

    def has_all(self, request: Request) -> None:
        """All that can be had of a request is here already, so that nothing is asked for."""
        ...

    def is_sent_on(self, request: Request) -> bool:
        """Whether a request that has ended holds its blocks until they have been sent."""
        ...

    def begin(self, transfer: Transfer) -> None:
        """A transfer begins at its `start_s`: a "recv" with a batch, a "send" when its request has ended."""
        ...


class Remote(Connector):
    """Loads that were asked for in a pass, and transfers under way."""

    brings_states = True

    def __init__(self, config: KVTransferConfig, peer: Peer) -> None:
        self.consumes = config.kv_role != "kv_producer"
        self.drops_preempted_outputs = config.kv_role != "kv_consumer"
        self.recomputes_failed = config.kv_load_failure_policy == "recompute"
        self.reports_at_start = config.reports_at_start
        self._recompute_threshold = config.kv_recompute_threshold
        self._peer = peer
        self._asked: list[Transfer] = []
        self._under_way: list[Transfer] = []

    @property
    def has_pending(self) -> bool:
        return bool(self._asked or self._under_way)

    @property
    def next_end_s(self) -> float:
        return 0.0 if self._asked else first_end_s(self._under_way)

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        num_elsewhere = self._peer.num_tokens_elsewhere(progress.request)
        num_tokens = num_elsewhere - num_hit_tokens
        if num_elsewhere and num_tokens <= 0:
            self._peer.has_all(progress.request)
        return num_tokens if num_tokens >= max(1, self._recompute_threshold) else 0

    def loads_in_step(self, progress: Progress) -> bool:
        return self._peer.loads_in_step(progress.request)

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:  # noqa: ARG002 - a connector's interface
        self._asked.append(Transfer(progress, "recv", num_tokens))

    def begin(self, now_s: float, start_s: float) -> float:
        for transfer in self._asked:
            transfer.start_s = start_s
            self._peer.begin(transfer)
            if self.events is not None:
                facts = (transfer.request.request_id, start_s, transfer.num_tokens, self.slots.pool.num_free)
                self.events.append([now_s, "recv_start", *facts])
        self._under_way += self._asked
        self._asked = []
        return start_s

    def finished(self, progress: Progress, now_s: float) -> bool:
        if not self._peer.is_sent_on(progress.request):
            return False
        transfer = Transfer(progress, "send", progress.num_computed)
        transfer.start_s = now_s
        self._peer.begin(transfer)
        self._under_way.append(transfer)
        if self.events is not None:
            self.events.append([now_s, "send_start", progress.request.request_id])
        return True

    def lose_all(self) -> list[Transfer]:
        lost = [*self._asked, *self._under_way]
        self._asked, self._under_way = [], []
        return lost

    def reported(self, until_s: float) -> list[Transfer]:
        over = over_by(self._under_way, until_s)
        if over:
            self._under_way = [transfer for transfer in self._under_way if transfer not in over]
        return over
