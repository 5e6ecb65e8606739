"""Routers as obvious as can be: everything recomputed from scratch, prompts as lists of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, NamedTuple

from sim.cluster.routers.sessions import HashRing
from sim.engine.config import SchedulerConfig
from sim.workload.trace import Trace
from tests.reference.content import tokens_of
from tests.reference.front_door import prompts_as_sent
from tests.reference.multi_connector import tier_of
from tests.reference.replica import Replica
from tests.reference.request import Request

Token = tuple[int, int]


@dataclass
class Router:
    """What every router is given; `metrics` are those of the last scrape, as (waiting, running, KV usage) of each replica."""

    trace: Trace
    config: SchedulerConfig
    num_replicas: int
    rng: Random
    options: dict[str, Any]
    scrape_interval_s: float | None = None
    is_one_server: bool = False

    def __post_init__(self) -> None:
        self.sent: list[tuple[Request, int]] = []
        self.prompts = prompts_as_sent(self.trace, self.config)
        self.metrics = [(0, 0, 0.0)] * self.num_replicas
        self.start()

    def start(self) -> None:
        """Whatever a kind has to begin with."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        raise NotImplementedError

    def scraped(self) -> None:
        """New metrics have come."""

    def in_flight(self, replica: int) -> list[Request]:
        return [
            request
            for request, where in self.sent
            if where == replica and not request.has_ended and request.rejected is None
        ]

    def any_of(self, best: Sequence[int]) -> int:
        return best[0] if len(best) == 1 else best[self.rng.randrange(len(best))]

    def prompt(self, row: int) -> list[Token]:
        """Its tokens: equal pairs are equal tokens."""
        return tokens_of(self.prompts[row])


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
            is_short: LeastLoaded(self.trace, self.config, len(pool), self.rng, {})
            for is_short, pool in self.pools.items()
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
        return next(HashRing(len(replicas)).owners(keys[request.index]))


class ProductionStackSession(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        session = self.trace.session_id[request.index] if self.trace.session_id else ""
        if session:
            return next(HashRing(len(replicas)).owners(session))
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


class LlmD(Router):
    """Filter, scorers, the best; all of it from lists of blocks, of what was sent and of what was scraped last."""

    weights: ClassVar[dict[str, float]] = {"queue": 2.0, "kv": 2.0, "prefix": 3.0}
    affinity_threshold = 0.0
    is_precise = False

    def start(self) -> None:
        names = (
            "queue",
            "kv",
            "prefix",
            "cpu_prefix",
            "running",
            "load_aware",
            "token_load",
            "active_request",
            "no_hit_lru",
        )
        self.weight = {name: self.options.get(name, self.weights.get(name, 0.0)) for name in names}
        self.threshold = self.options.get("affinity_threshold", self.affinity_threshold)
        self.most = self.options.get("max_penalty_tokens", 286_720)
        if any(self.weight[name] for name in ("queue", "kv", "running", "load_aware")):
            self.scrape_interval_s = self.options.get("scrape_interval_s", 0.05)
        self.recent: list[list[tuple[Token, ...]]] = [[] for _ in range(self.num_replicas)]
        self.recent_on_cpu: list[list[tuple[Token, ...]]] = [[] for _ in range(self.num_replicas)]
        self.uncached: dict[Request, float] = {}
        self.cold: list[int] = []

    def blocks(self, row: int) -> list[tuple[Token, ...]]:
        """Each full block with all that comes before it."""
        prompt, size = self.prompt(row), self.options.get("block_size", self.config.block_size)
        most = len(prompt) if self.is_precise else self.options.get("max_prefix_tokens", 131_072)
        return [tuple(prompt[:end]) for end in range(size, min(len(prompt), most) + 1, size)]

    def matched(self, request: Request, replicas: Sequence[Replica]) -> list[float]:
        if self.is_precise:
            return [max(self.held(request, engine) for engine in replica.engines) for replica in replicas]
        return self.sent_to(request, self.recent)

    def held(self, request: Request, replica: Replica) -> float:
        hit = replica.scheduler.kv.held_prefix(request)
        num_blocks, tier = hit.num_tokens // self.config.block_size, tier_of(replica.scheduler.connector)
        if tier is None:
            return num_blocks
        num_behind = tier.num_stored_behind(request, hit) // self.config.block_size
        return num_blocks + float(self.options.get("cpu_weight", 0.8)) * num_behind

    def sent_to(self, request: Request, index: Sequence[list[tuple[Token, ...]]]) -> list[float]:
        counts = [0.0] * self.num_replicas
        for block in self.blocks(request.index):
            holders = [replica for replica, recent in enumerate(index) if block in recent]
            if not holders:
                break
            for replica in holders:
                counts[replica] += 1
        return counts

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        matched, blocks = self.matched(request, replicas), self.blocks(request.index)
        self.share = [count / len(blocks) if blocks else 0.0 for count in matched]
        on_cpu = self.sent_to(request, self.recent_on_cpu)
        self.share_on_cpu = [count / len(blocks) if blocks else 0.0 for count in on_cpu]
        size = self.options.get("block_size", self.config.block_size)
        self.to_compute = [request.num_prompt_tokens - count * size for count in matched]
        self.tokens: list[float] = [
            sum(map(self.still_to_compute, self.in_flight(replica), [request] * len(self.sent)))
            for replica in range(self.num_replicas)
        ]
        candidates = self.candidates()
        scores = [sum(self.weighted(name, replica, candidates) for name in self.weight) for replica in candidates]
        chosen = self.picked(candidates, scores)
        if not any(matched):
            self.cold.append(chosen)
        self.uncached[request] = self.to_compute[chosen]
        capacity = self.options.get("lru_blocks", self.config.num_gpu_blocks)
        self.recent[chosen] = [block for block in self.recent[chosen] if block not in blocks] + blocks
        self.recent[chosen] = self.recent[chosen][-capacity:]
        others = [block for block in self.recent_on_cpu[chosen] if block not in blocks]
        self.recent_on_cpu[chosen] = (others + blocks)[-self.options.get("cpu_lru_blocks", 82_000) :]
        return chosen

    def picked(self, candidates: list[int], scores: list[float]) -> int:
        """A chance as large as one's score is a stretch of that length on a line."""
        picker = self.options.get("picker", "max_score")
        if picker == "max_score":
            return self.any_of(
                [replica for replica, score in zip(candidates, scores, strict=True) if score == max(scores)]
            )
        if picker == "random" or not any(scores):
            return candidates[self.rng.randrange(len(candidates))]
        place, ends = self.rng.random() * sum(scores), list(accumulate(scores))
        return next((replica for replica, end in zip(candidates, ends, strict=True) if place < end), candidates[-1])

    def still_to_compute(self, request: Request, arriving: Request) -> float:
        ratio = self.options.get("output_ratio", 0.0)
        has_begun = request.first_token_s is not None and request.first_token_s < arriving.arrival_s
        return 0 if has_begun and not ratio else self.uncached[request] + ratio * request.num_prompt_tokens

    def candidates(self) -> list[int]:
        everybody = list(range(self.num_replicas))
        sticky = [replica for replica in everybody if self.share[replica] >= self.threshold]
        others = [replica for replica in everybody if replica not in sticky]
        if not self.threshold or not sticky:
            return everybody
        if self.most and others:
            best = [min(self.tokens[replica] for replica in some) for some in (sticky, others)]
            if best[0] - best[1] > self.most:
                return everybody
        return sticky

    def weighted(self, name: str, replica: int, candidates: list[int]) -> float:
        return self.weight[name] * self.score(name, replica, candidates) if self.weight[name] else 0.0

    def score(self, name: str, replica: int, candidates: list[int]) -> float:  # noqa: PLR0911
        waiting, running, usage = self.metrics[replica]
        match name:
            case "queue":
                return fewest(waiting, [self.metrics[other][0] for other in candidates])
            case "running":
                return fewest(running, [self.metrics[other][1] for other in candidates])
            case "kv":
                return 1 - usage
            case "prefix":
                return self.share[replica]
            case "cpu_prefix":
                return self.share_on_cpu[replica]
            case "load_aware":
                return 0.5 * (1 - min(waiting, 128) / 128)
            case "token_load":
                num_tokens: float = self.tokens[replica] + self.to_compute[replica]
                return 1 - min(num_tokens, 4_194_304) / 4_194_304
            case "active_request":
                active = [len(self.in_flight(other)) for other in candidates]
                return (max(active) - active[candidates.index(replica)]) / max(active) if any(active) else 1
            case _:
                is_known = any(self.share[other] for other in candidates)
                return 0.5 if is_known else self.since_cold(replica, candidates)

    def since_cold(self, replica: int, candidates: list[int]) -> float:
        last = {
            other: max((n for n, where in enumerate(self.cold) if where == other), default=-1) for other in candidates
        }
        rank = sorted(candidates, key=lambda other: (last[other], other)).index(replica)
        return 1 - rank / (len(candidates) - 1) if len(candidates) > 1 else 1


def fewest(count: int, counts: list[int]) -> float:
    return 1 if max(counts) == min(counts) else (max(counts) - count) / (max(counts) - min(counts))


class LlmDPrecise(LlmD):
    is_precise = True


class LlmDOptimizedBaseline(LlmD):
    weights: ClassVar[dict[str, float]] = {"token_load": 1.0}
    affinity_threshold = 0.8


class ProductionStackPrefix(Router):
    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        size = self.options.get("chunk_tokens", 32)
        longest = list(range(self.num_replicas))
        for end in range(size, len(self.prompt(request.index)) + size, size):
            chunk = self.prompt(request.index)[:end]
            sent = {where for earlier, where in self.sent if self.has_chunk(earlier.index, chunk, size)}
            if not sent & set(longest):
                break
            longest = [replica for replica in longest if replica in sent]
        return self.any_of(longest)

    def has_chunk(self, row: int, chunk: list[Token], size: int) -> bool:
        """Chunks are cut every so many tokens, and where a prompt ends."""
        return self.prompt(row)[: len(chunk)] == chunk and (
            len(chunk) % size == 0 or len(chunk) == len(self.prompt(row))
        )


Prefix = tuple[Token, ...]


class Use(NamedTuple):
    """Which request brought a prefix to a worker, and when the worker last had use of it."""

    brought_by: int
    last_s: float


class SglangCacheAware(Router):
    """A worker's tree has each prefix of what it was sent, however short; it forgets from where prompts end or part to where they do."""

    def start(self) -> None:
        prompts = [self.prompt(row) for row in range(len(self.trace))]
        self.ends = {tuple(one[: common(one, other)]) for one in prompts for other in prompts}
        self.trees: list[dict[Prefix, Use]] = [{} for _ in range(self.num_replicas)]
        self.evicted_s = 0.0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002
        now_s, prompt = request.arrival_s, self.prompt(request.index)
        self.evict_if_due(now_s)
        loads = [len(self.in_flight(replica)) for replica in range(self.num_replicas)]
        most_apart, most_times = (
            self.options.get(f"balance_{kind}_threshold", least) for kind, least in (("abs", 64), ("rel", 1.5))
        )
        if max(loads) - min(loads) > most_apart and max(loads) > most_times * min(loads):
            chosen = loads.index(min(loads))
        else:
            chosen = self.by_prefix(prompt, now_s)
        for prefix in prefixes(prompt):
            brought_by = self.trees[chosen][prefix].brought_by if prefix in self.trees[chosen] else len(self.sent)
            self.trees[chosen][prefix] = Use(brought_by, now_s)
        return chosen

    def by_prefix(self, prompt: list[Token], now_s: float) -> int:
        known = [prefix for prefix in prefixes(prompt) if any(prefix in tree for tree in self.trees)]
        if known:
            holders = [worker for worker, tree in enumerate(self.trees) if known[-1] in tree]
            first = min(holders, key=lambda worker: self.trees[worker][known[-1]].brought_by)
            for prefix in known:
                self.trees[first][prefix] = self.trees[first][prefix]._replace(last_s=now_s)
            if len(known) / len(prompt) > self.options.get("cache_threshold", 0.3):
                return first
        sizes = [len(tree) for tree in self.trees]
        return sizes.index(min(sizes))

    def evict_if_due(self, now_s: float) -> None:
        interval_s = self.options.get("eviction_interval_s", 120.0)
        if now_s // interval_s * interval_s <= self.evicted_s:
            return
        self.evicted_s = now_s // interval_s * interval_s
        for tree in self.trees:
            while 4 * len(tree) > self.options.get("max_tree_size", 67_108_864):
                leaves = [end for end in self.ends & set(tree) if not any(other[:-1] == end for other in tree)]
                forgotten = min(leaves, key=lambda leaf: (tree[leaf].last_s, tree[leaf].brought_by))
                del tree[forgotten]
                while (forgotten := forgotten[:-1]) and forgotten not in self.ends:
                    del tree[forgotten]


def prefixes(prompt: list[Token]) -> list[Prefix]:
    return [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]


def common(one: list[Token], other: list[Token]) -> int:
    return next(
        (n for n, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs),
        min(len(one), len(other)),
    )


class Dynamo(Router):
    """Without KV events: a replica is taken to hold what it was sent of late."""

    def start(self) -> None:
        self.uncached: dict[Request, float] = {}

    def blocks(self, row: int) -> list[tuple[Token, ...]]:
        prompt, size = self.prompt(row), self.config.block_size
        return [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        size, since_s = self.config.block_size, request.arrival_s - self.options.get("ttl_s", 120.0)
        costs, held = [], []
        for replica in range(len(replicas)):
            late = [earlier for earlier, where in self.sent if where == replica and earlier.arrival_s >= since_s]
            known = {block for earlier in late for block in self.blocks(earlier.index)}
            held.append(sum(block in known for block in self.blocks(request.index)))
            active = self.in_flight(replica)
            computing = [
                other for other in active if other.first_token_s is None or other.first_token_s >= request.arrival_s
            ]
            tokens = sum(self.uncached[other] for other in computing) + request.num_prompt_tokens
            in_use = {block for other in (*active, request) for block in self.blocks(other.index)}
            prefill = max(0.0, tokens / size - held[-1])
            costs.append(prefill + len(in_use) + self.options.get("request_weight", 0.0) * len(active))
        chosen = self.any_of([replica for replica, cost in enumerate(costs) if cost == min(costs)])
        self.uncached[request] = request.num_prompt_tokens - held[chosen] * size
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
    "production_stack_prefix": ProductionStackPrefix,
    "sglang_cache_aware": SglangCacheAware,
    "dynamo": Dynamo,
    "llm_d": LlmD,
    "llm_d_precise": LlmDPrecise,
    "llm_d_optimized_baseline": LlmDOptimizedBaseline,
}
