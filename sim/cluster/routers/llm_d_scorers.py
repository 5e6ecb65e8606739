"""llm-d's scorers: 0 to 1 for each candidate, in columns."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Floats

FULL_QUEUE = 128
MANY_TOKENS = 4_194_304
NEUTRAL = 0.5


class Candidates(NamedTuple):
    """The router's view of the replicas, a column a figure; the first three as they were scraped.

    `matched_share` is how much of the prompt each holds, `num_uncached_tokens` what it would have to compute of it;
    `last_cold` the number of the last request without any match that it was sent, -1 for none.
    """

    num_waiting: Floats
    num_running: Floats
    kv_cache_usage: Floats
    matched_share: Floats
    num_uncached_tokens: Floats
    num_tokens_in_flight: Floats
    num_active: Floats
    last_cold: Floats

    def only(self, kept: NDArray[np.intp]) -> "Candidates":
        """Some of them."""
        return Candidates(*(column[kept] for column in self))


def largest(column: Floats) -> float:
    """As numpy's `max`, in a third of the time where there are a hundred entries."""
    return float(column[column.argmax()])


def _fewest(counts: Floats) -> Floats:
    """1 for the fewest, 0 for the most."""
    least, most = float(counts[counts.argmin()]), largest(counts)
    return np.ones(len(counts)) if least == most else (most - counts) / (most - least)


def _queue(candidates: Candidates) -> Floats:
    return _fewest(candidates.num_waiting)


def _running(candidates: Candidates) -> Floats:
    return _fewest(candidates.num_running)


def _kv(candidates: Candidates) -> Floats:
    return 1.0 - candidates.kv_cache_usage


def _prefix(candidates: Candidates) -> Floats:
    return candidates.matched_share


def _load_aware(candidates: Candidates) -> Floats:
    return 0.5 * (1.0 - np.minimum(candidates.num_waiting, FULL_QUEUE) / FULL_QUEUE)


def _token_load(candidates: Candidates) -> Floats:
    num_tokens = candidates.num_tokens_in_flight + candidates.num_uncached_tokens
    return 1.0 - np.minimum(num_tokens, MANY_TOKENS) / MANY_TOKENS


def _active_request(candidates: Candidates) -> Floats:
    most = candidates.num_active.max()
    return (most - candidates.num_active) / most if most else np.ones(len(candidates.num_active))


def _no_hit_lru(candidates: Candidates) -> Floats:
    """A request without any match goes to the replica whose last such request is the oldest."""
    count = len(candidates.last_cold)
    if candidates.matched_share.any():
        return np.full(count, NEUTRAL)
    scores = np.ones(count)
    if count > 1:
        scores[np.argsort(candidates.last_cold, kind="stable")] = 1.0 - np.arange(count) / (count - 1)
    return scores


SCORERS: dict[str, Callable[[Candidates], Floats]] = {
    "queue": _queue,
    "kv": _kv,
    "prefix": _prefix,
    "running": _running,
    "load_aware": _load_aware,
    "token_load": _token_load,
    "active_request": _active_request,
    "no_hit_lru": _no_hit_lru,
}
