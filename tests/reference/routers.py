"""Routers as obvious as can be: everything recomputed from scratch, prompts as lists of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from sim.cluster.routers.sessions import HashRing
from sim.engine.content import private_prompt_id
from sim.workload.trace import Trace
from tests.reference.replica import Replica
from tests.reference.request import Request

Token = tuple[int, int]


@dataclass
class Router:
    """What every router is given; `metrics` are those of the last scrape, as (waiting, running, KV usage) of each replica."""

    trace: Trace
    num_replicas: int
    rng: Random
    options: dict[str, Any]
    scrape_interval_s: float | None = None

    def __post_init__(self) -> None:
        self.sent: list[tuple[Request, int]] = []
        self.metrics = [(0, 0, 0.0)] * self.num_replicas
        self.start()

    def start(self) -> None:
        """Whatever a kind has to begin with."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        raise NotImplementedError

    def scraped(self) -> None:
        """New metrics have come."""

    def in_flight(self, replica: int) -> list[Request]:
        return [request for request, where in self.sent if where == replica and request.finish_s is None]

    def any_of(self, best: Sequence[int]) -> int:
        return best[0] if len(best) == 1 else best[self.rng.randrange(len(best))]

    def prompt(self, row: int) -> list[Token]:
        """Its tokens: equal pairs are equal tokens."""
        prompt = ((private_prompt_id(row), int(self.trace.prompt_tokens[row])),)
        segments = self.trace.segments[row] if self.trace.segments is not None else prompt
        return [(content, number) for content, length in segments for number in range(length)]


class RandomChoice(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        return self.rng.randrange(len(replicas))


class RoundRobin(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        return len(self.sent) % len(replicas)


class LeastLoaded(Router):
    """4 x waiting + running; the first of equals, counted from the one after the last chosen."""

    last = -1

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        scores = [4 * replica.load[0] + replica.load[1] for replica in replicas]
        turns = [(self.last + 1 + turn) % len(replicas) for turn in range(len(replicas))]
        self.last = min(turns, key=lambda number: scores[number])
        return self.last


class PromptLength(Router):
    def start(self) -> None:
        threshold = self.options.get("threshold", 4096)
        num_short = self.options.get("short") or max(1, self.num_replicas // 2)
        self.is_short: Callable[[Request], bool] = lambda request: request.num_prompt_tokens <= threshold
        self.pools = {True: range(num_short), False: range(num_short, self.num_replicas)}
        self.choosers = {
            is_short: LeastLoaded(self.trace, len(pool), self.rng, {}) for is_short, pool in self.pools.items()
        }

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        is_short = self.is_short(request)
        pool = self.pools[is_short]
        return pool[self.choosers[is_short].choose(request, [replicas[number] for number in pool])]


class PowerOfTwo(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        first = self.rng.randrange(len(replicas))
        others = [number for number in range(len(replicas)) if number != first]
        second = others[self.rng.randrange(len(others))]
        return first if len(self.in_flight(first)) <= len(self.in_flight(second)) else second


class ConsistentHash(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        keys = self.trace.session_id or self.trace.request_id
        return HashRing(len(replicas)).replica(keys[request.index])


class ProductionStackSession(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        session = self.trace.session_id[request.index] if self.trace.session_id else ""
        if session:
            return HashRing(len(replicas)).replica(session)
        since_s = request.arrival_s - self.options.get("stats_window_s", 60.0)
        counts = [
            [earlier.arrival_s for earlier, where in self.sent if where == replica] for replica in range(len(replicas))
        ]
        unused = [replica for replica, times in enumerate(counts) if not times]
        recent = [sum(time_s >= since_s for time_s in times) for times in counts]
        return unused[0] if unused else recent.index(min(recent))


class VllmDataParallel(Router):
    """One API server: the larger of its own requests and those counted there, and more for who waits at a full cache."""

    def start(self) -> None:
        self.scrape_interval_s = self.options.get("interval_s", 0.1)
        self.last_metrics: list[tuple[int, int, float]] = list(self.metrics)
        self.num_sent_since = [0] * self.num_replicas

    def scraped(self) -> None:
        if self.metrics != self.last_metrics:
            self.last_metrics = list(self.metrics)
            self.num_sent_since = [0] * self.num_replicas

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        scores = []
        for replica, (waiting, running, usage) in enumerate(self.last_metrics):
            waits = waiting + self.num_sent_since[replica]
            score = max(len(self.in_flight(replica)), waits + running)
            scores.append(score + (waits * 6 * max(0, usage - 0.5) if waits else 0))
        turns = [(len(self.sent) + turn) % len(scores) for turn in range(len(scores))]
        chosen = min(turns, key=lambda number: scores[number])
        self.num_sent_since[chosen] += 1
        return chosen


ROUTERS: dict[str, type[Router]] = {
    "random": RandomChoice,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "prompt_length": PromptLength,
    "power_of_two": PowerOfTwo,
    "consistent_hash": ConsistentHash,
    "production_stack_session": ProductionStackSession,
    "vllm_dp": VllmDataParallel,
}
