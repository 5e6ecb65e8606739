"""vLLM's own balancer between its data-parallel engines, as its API servers run it: which engine gets a request, by what is known of them.

Mirrors vllm/v1/engine/core_client.py (0.33, `get_core_engine_for_request`; checked against recorded choices).
"""

from collections.abc import Container, Sequence
from math import inf

from sim.engine.metrics import Metrics

NOTHING: Metrics = (0, 0, 0.0)
WAITING_WEIGHT = 6
FREE_KV_USAGE = 0.5
"""Up to this KV cache usage a waiting request counts no more than a running one."""


class Balancer:
    """One API server's view of the engines: the counts that it was sent last, and its own requests in flight."""

    def __init__(self, num_engines: int, num_clients: int = 1, client: int = 0) -> None:
        self._num_clients = num_clients
        self._start = num_engines * client // num_clients
        self._counts = [NOTHING] * num_engines
        self._num_in_flight = [0] * num_engines
        self._scores = [0.0] * num_engines

    def update(self, counts: Sequence[Metrics]) -> None:
        """The coordinator has sent new counts."""
        self._counts = list(counts)
        self._scores = [self._score(engine) for engine in range(len(self._counts))]

    def choose(self, candidates: Container[int] | None = None) -> int:
        """The engine for a new request: the first of the lowest score, starting at a place that moves with each request.

        `candidates` are the engines that can be chosen, if not all.
        """
        num_engines, start, scores = len(self._counts), self._start, self._scores
        if candidates is not None:
            scores = [score if engine in candidates else inf for engine, score in enumerate(scores)]
        in_turn = scores[start:] + scores[:start]
        chosen = (start + in_turn.index(min(in_turn))) % num_engines
        self._start = (start + 1) % num_engines
        num_waiting, num_running, kv_cache_usage = self._counts[chosen]
        self._counts[chosen] = (num_waiting + self._num_clients, num_running, kv_cache_usage)
        self.sent(chosen)
        return chosen

    def _score(self, engine: int) -> float:
        num_waiting, num_running, kv_cache_usage = self._counts[engine]
        score = float(max(self._num_clients * self._num_in_flight[engine], num_waiting + num_running))
        if num_waiting > 0 and kv_cache_usage > FREE_KV_USAGE:
            score += num_waiting * WAITING_WEIGHT * (kv_cache_usage - FREE_KV_USAGE)
        return score

    def sent(self, engine: int) -> None:
        """A request goes to an engine, chosen here or by its client."""
        self._num_in_flight[engine] += 1
        self._scores[engine] = self._score(engine)

    def answered(self, engine: int) -> None:
        """One of this server's requests has ended."""
        self._num_in_flight[engine] -= 1
        self._scores[engine] = self._score(engine)
