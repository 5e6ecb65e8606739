"""llm-d's scorers: 0 to 1 for each candidate, in columns. Those that read metrics alone are in metric_scores.py."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.gauges import Gauges
from sim.engine.records import Floats

FULL_QUEUE = 128
MANY_TOKENS = 4_194_304
NEUTRAL = 0.5


class Candidates(NamedTuple):
    """The router's view of the replicas, a column a figure; the first three as they were scraped.

    `num_matched` are the leading blocks of the prompt that each holds, `num_on_cpu` those in its host memory, `last_cold` the number of the last request without any
    match that it was sent, -1 for none. The prompt has `num_tokens`, and `num_blocks` that may match.
    """

    num_waiting: Floats
    num_running: Floats
    kv_cache_usage: Floats
    num_matched: Floats
    num_on_cpu: Floats
    num_tokens_in_flight: Floats
    num_active: Floats
    last_cold: Floats
    num_tokens: int
    num_blocks: int
    block_size: int

    @property
    def gauges(self) -> Gauges:
        """The first three as lists."""
        num_waiting, num_running = self.num_waiting.astype(np.int64), self.num_running.astype(np.int64)
        return num_waiting.tolist(), num_running.tolist(), self.kv_cache_usage.tolist()

    @property
    def matched_share(self) -> Floats:
        """How much of the prompt each holds."""
        return self.num_matched / max(1, self.num_blocks)

    @property
    def most_matched_share(self) -> float:
        """How much of the prompt those hold who hold most of it."""
        return largest(self.num_matched) / max(1, self.num_blocks)

    @property
    def num_uncached_tokens(self) -> Floats:
        """What each would have to compute of the prompt."""
        return self.num_tokens - self.num_matched * self.block_size

    def only(self, kept: NDArray[np.intp]) -> "Candidates":
        """Some of them."""
        return Candidates(
            self.num_waiting[kept],
            self.num_running[kept],
            self.kv_cache_usage[kept],
            self.num_matched[kept],
            self.num_on_cpu[kept],
            self.num_tokens_in_flight[kept],
            self.num_active[kept],
            self.last_cold[kept],
            self.num_tokens,
            self.num_blocks,
            self.block_size,
        )


Scorer = Callable[[Candidates], Floats]


def largest(column: Floats) -> float:
    """As numpy's `max`, in a third of the time where there are a hundred entries."""
    return float(column[column.argmax()])


def _running(candidates: Candidates) -> Floats:
    """1 for the fewest, 0 for the most."""
    counts = candidates.num_running
    least, most = float(counts[counts.argmin()]), largest(counts)
    return np.ones(len(counts)) if least == most else (most - counts) / (most - least)


def _prefix(candidates: Candidates) -> Floats:
    return candidates.matched_share


def _cpu_prefix(candidates: Candidates) -> Floats:
    return candidates.num_on_cpu / max(1, candidates.num_blocks)


def _load_aware(candidates: Candidates) -> Floats:
    return 0.5 * (1.0 - np.minimum(candidates.num_waiting, FULL_QUEUE) / FULL_QUEUE)


def _token_load(candidates: Candidates) -> Floats:
    num_tokens = candidates.num_tokens_in_flight + candidates.num_uncached_tokens
    return 1.0 - np.minimum(num_tokens, MANY_TOKENS) / MANY_TOKENS


def _active_request(candidates: Candidates) -> Floats:
    most = largest(candidates.num_active)
    return (most - candidates.num_active) / most if most else np.ones(len(candidates.num_active))


def _no_hit_lru(candidates: Candidates) -> Floats:
    """A request without any match goes to the replica whose last such request is the oldest."""
    count = len(candidates.last_cold)
    if candidates.num_matched.any():
        return np.full(count, NEUTRAL)
    scores = np.ones(count)
    if count > 1:
        scores[np.argsort(candidates.last_cold, kind="stable")] = 1.0 - np.arange(count) / (count - 1)
    return scores


SCORERS: dict[str, Scorer] = {
    "prefix": _prefix,
    "cpu_prefix": _cpu_prefix,
    "running": _running,
    "load_aware": _load_aware,
    "token_load": _token_load,
    "active_request": _active_request,
    "no_hit_lru": _no_hit_lru,
}


def total(weights: Sequence[tuple[float, Scorer]], candidates: Candidates, start: Floats) -> Floats:
    """Weighted scores, added up in their order to what there is."""
    for weight, score in weights:
        start = start + weight * score(candidates)
    return start


def best_of(scores: Floats) -> list[int]:
    """The places of the highest."""
    best: list[int] = (scores == largest(scores)).nonzero()[0].tolist()
    return best
