"""llm-d's endpoint picker: a filter, scorers with weights, and a picker that takes the highest sum, of equals any, or draws.

After llm-d/llm-d-router @ebab6879, pkg/epp/: default weights in config/loader/defaults.go, scorers, filter and in-flight
tokens in framework/plugins/, pickers in framework/plugins/scheduling/picker/ (its weighted random one draws by keys U^(1/score), of which the largest
is anyone's with a chance as large as the score); weights of GPU and CPU blocks in llm-d/llm-d-kv-cache @5fe8e205, pkg/kvcache/backend.go. Its metrics are refreshed every 50 ms (`--refresh-metrics-interval`), here at multiples of it.
Deliberate differences: precise prefixes are those that a replica's cache holds at this instant and its admission could
use, and the blocks behind them in host memory, where the index follows KV events by some milliseconds; LoRA affinity is left out. Of unlike replicas the first says how
large a block is, and each how many its part of the index holds, as in llm-d.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.llm_d_few import fewest_tokens, sticky_among
from sim.cluster.routers.llm_d_scorers import SCORERS, Candidates, best_of, total
from sim.cluster.routers.metric_scores import METRIC_SCORERS, MetricScores, metric_total
from sim.cluster.routers.prefilling import Prefilling, TokensInFlight
from sim.cluster.routers.prefix_index import PrefixIndex
from sim.cluster.routers.router import Fleet, Router, RouterOptions, one_of
from sim.cluster.routers.scrape import Scrape
from sim.cluster.routers.sent_before import SentBefore
from sim.cluster.routers.stretches import Stretch, by_replica, in_columns, num_holders
from sim.engine.records import Floats
from sim.engine.request import Request
from sim.errors import ConfigError

PICKERS = ("max_score", "weighted_random", "random")
FEW = 16
"""So many holders of a prompt are looked at one by one in less time than all replicas in columns."""


@dataclass(frozen=True)
class LlmDOptions(RouterOptions):
    """Weights of scorers, 0 for none. 0 blocks and a block size of 0 are the engine's own, as llm-d takes them over.

    Indexes look at the first `max_prefix_tokens` of a prompt (llm-d's maxPrefixTokensToMatch, or older maxPrefixBlocksToMatch, 256 of 16).
    `cpu_prefix` weighs a second index of what was sent, of `cpu_lru_blocks` a replica, 82,000 as in llm-d's guide to tiers.

    With an `affinity_threshold`, replicas that hold such a share of the prompt are the only candidates, unless the best of
    them has over `max_penalty_tokens` more in flight than the best of the others; 0 switches that exception off.

    In flight are tokens of prompts that are not computed yet. With an `output_ratio` they count until the request has ended, with that
    many times its prompt for an answer: 1.5 in routers before llm-d-router #1029 made it a choice (its includeOutputTokens, later
    addEstimatedOutputTokens).

    The `picker` takes the highest sum (max-score-picker), draws anyone with a chance as large as the sum (weighted-random-picker), or whoever it is (random-picker).
    """

    is_precise: ClassVar[bool] = False

    queue: float = option(2.0, at_least=0)
    kv: float = option(2.0, at_least=0)
    prefix: float = option(3.0, at_least=0)
    cpu_prefix: float = option(0.0, at_least=0)
    running: float = option(0.0, at_least=0)
    load_aware: float = option(0.0, at_least=0)
    token_load: float = option(0.0, at_least=0)
    active_request: float = option(0.0, at_least=0)
    no_hit_lru: float = option(0.0, at_least=0)
    affinity_threshold: float = option(0.0, at_least=0, at_most=1)
    max_penalty_tokens: float = option(286_720.0, at_least=0)
    output_ratio: float = option(0.0, at_least=0)
    block_size: int = option(0, at_least=0)
    lru_blocks: int = option(0, at_least=0)
    cpu_lru_blocks: int = option(82_000, at_least=1)
    max_prefix_tokens: int = option(131_072, at_least=1)
    scrape_interval_s: float = option(0.05, at_least=0.001)
    picker: str = option("max_score", choices=PICKERS)

    @property
    def weight_on_cpu(self) -> float:
        """Of a block in host memory among those of a prefix, where they are known."""
        return 0.0

    @property
    def listens(self) -> bool:
        """Whether requests in flight are counted."""
        return bool(self.token_load or self.active_request or self.affinity_threshold)

    @property
    def scrapes(self) -> bool:
        """Whether metrics are read."""
        return bool(self.queue or self.kv or self.running or self.load_aware)

    @property
    def is_blind(self) -> bool:
        return not (self.is_precise or self.listens or self.scrapes)

    def router(self, fleet: Fleet) -> Router:
        return LlmD(self, fleet)


@dataclass(frozen=True)
class LlmDPreciseOptions(LlmDOptions):
    """Prefixes as the replicas hold them, in their caches and behind those in host memory, whose blocks count `cpu_weight` each."""

    is_precise: ClassVar[bool] = True

    cpu_weight: float = option(0.8, at_least=0, at_most=1)

    @property
    def weight_on_cpu(self) -> float:
        return self.cpu_weight

    def router(self, fleet: Fleet) -> Router:
        if self.cpu_prefix:
            raise ConfigError(
                "router llm_d_precise knows what is in host memory, and weighs it by cpu_weight; leave cpu_prefix out."
            )
        return LlmD(self, fleet)


@dataclass(frozen=True)
class LlmDOptimizedBaselineOptions(LlmDOptions):
    """The guide of that name (llm-d/llm-d @0a3b0c93): the affinity filter, then the fewest tokens to compute."""

    queue: float = option(0.0, at_least=0)
    kv: float = option(0.0, at_least=0)
    prefix: float = option(0.0, at_least=0)
    token_load: float = option(1.0, at_least=0)
    affinity_threshold: float = option(0.8, at_least=0, at_most=1)


class LlmD(Router):
    """Listens if a scorer counts requests in flight; scrapes if a scorer reads engine metrics."""

    def __init__(self, options: LlmDOptions, fleet: Fleet) -> None:
        self._options = options
        self._rng = fleet.rng()
        self._takes_best = options.picker == "max_score"
        weights = {name: weight for name in (*METRIC_SCORERS, *SCORERS) if (weight := getattr(options, name))}
        self._by_metrics = [(weights[name], score) for name, score in METRIC_SCORERS.items() if name in weights]
        self._others = [(weights[name], score) for name, score in SCORERS.items() if name in weights]
        self._metric_scores = MetricScores(self._by_metrics, fleet.num_replicas)
        self.listens = options.listens
        self.asks_the_clock = options.is_precise
        self._prefixes_alone = not (self.listens or weights.keys() - {*METRIC_SCORERS, "prefix"})
        has_halves_at_most = not (options.is_precise or 2 * options.output_ratio % 1)
        self._tokens_alone = weights.keys() == {"token_load"} and has_halves_at_most
        if options.scrapes:
            self.scrape_interval_s = options.scrape_interval_s
        self._scrape = Scrape(fleet.num_replicas, options.scrape_interval_s) if self.scrape_interval_s else None
        self._in_flight = (TokensInFlight if options.output_ratio else Prefilling)(fleet.num_replicas)
        self._nothing: Floats = np.zeros(fleet.num_replicas)
        self._num_active: Floats = np.zeros(fleet.num_replicas)
        self._last_cold: Floats = np.full(fleet.num_replicas, -1.0)
        self._num_cold = 0
        self._prompts = fleet.prompts
        if options.is_precise:
            fleet.require_same_blocks("llm_d_precise")
        self._block_size = fleet.block_size if options.is_precise else options.block_size or fleet.block_size
        num_blocks = self._prompts.num_blocks(self._block_size, options.max_prefix_tokens)
        capacities = [options.lru_blocks or config.num_gpu_blocks for config in fleet.configs]
        self._index = None if options.is_precise else PrefixIndex(self._prompts, num_blocks, capacities)
        self._sent_before = SentBefore(fleet.prompts)
        on_cpu = [options.cpu_lru_blocks] * fleet.num_replicas
        self._cpu_index = PrefixIndex(self._prompts, num_blocks, on_cpu) if options.cpu_prefix else None

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        path = self._prompts.path(request.index)
        if self._scrape:
            self._scrape.refresh(request.arrival_s, replicas)
        if self.listens:
            self._in_flight.refresh(request.arrival_s)
        matched = self._matched(request, path, replicas)
        is_simple = self._takes_best and len(replicas) == len(self._nothing) and num_holders(matched) <= FEW
        held = by_replica(matched) if is_simple else {}
        best = self._best_by_holders(request, held) if is_simple else None
        if best is not None:
            chosen = replicas[one_of(best, self._rng)]
            num_matched = held.get(chosen.number, 0.0)
        else:
            candidates = self._candidates(request, path, matched, replicas)
            place = self._picked(candidates)
            chosen, num_matched = replicas[place], float(candidates.num_matched[place])
            if not np.count_nonzero(candidates.num_matched):
                self._last_cold[chosen.number] = self._num_cold
                self._num_cold += 1
        if self.listens:
            num_tokens = (1 + self._options.output_ratio) * request.num_prompt_tokens
            self._in_flight.add(request, chosen.number, num_tokens - num_matched * self._block_size)
            self._num_active[chosen.number] += 1
        self._remember(path, chosen.number)
        return chosen

    def _best_by_holders(self, request: Request, held: dict[int, float]) -> list[int] | None:
        """The places of the best of all, where what few hold of the prompt is all that sets them apart beside one figure; None where it is not."""
        if self._prefixes_alone:
            return self._best_by_metrics(request, held)
        return self._best_by_tokens(request, held) if self._tokens_alone else None

    def _best_by_metrics(self, request: Request, held: dict[int, float]) -> list[int]:
        return self._scores_by_metrics.best_with(held, max(1, self._num_matchable(request)), self._options.prefix)

    def _best_by_tokens(self, request: Request, held: Mapping[int, float]) -> list[int] | None:
        options, in_flight, sticky = self._options, self._in_flight.num_tokens, []
        if held and options.affinity_threshold:
            num_blocks = max(1, self._num_matchable(request))
            shares = {replica: num_held / num_blocks for replica, num_held in held.items()}
            sticky = sticky_among(shares, in_flight, options.affinity_threshold, options.max_penalty_tokens)
        cached = {replica: num_held * self._block_size for replica, num_held in held.items()}
        return fewest_tokens(request.num_prompt_tokens, cached, in_flight, sticky)

    def _num_matchable(self, request: Request) -> int:
        """Blocks of the prompt that an index may look at."""
        num_tokens = request.num_prompt_tokens
        if self._index is not None:
            num_tokens = min(num_tokens, self._options.max_prefix_tokens)
        return num_tokens // self._block_size

    def _candidates(
        self, request: Request, path: Sequence[int], matched: Sequence[Stretch], replicas: Sequence[Replica]
    ) -> Candidates:
        """What is known of the candidates, in their order."""
        nothing = self._nothing
        everyone = Candidates(
            *(self._scrape.columns if self._scrape else (nothing, nothing, nothing)),
            in_columns(matched, len(nothing)),
            in_columns(self._cpu_index.matched(path), len(nothing)) if self._cpu_index else nothing,
            self._in_flight.num_tokens,
            self._num_active,
            self._last_cold,
            request.num_prompt_tokens,
            self._num_matchable(request),
            self._block_size,
        )
        if len(replicas) == len(nothing):
            return everyone
        return everyone.only(np.array([replica.number for replica in replicas]))

    def _matched(self, request: Request, path: Sequence[int], replicas: Sequence[Replica]) -> list[Stretch]:
        """Leading blocks of the prompt; only those of candidates mean anything."""
        if self._index is not None:
            return self._index.matched(path)
        held, weight = [], self._options.weight_on_cpu
        for replica in self._sent_before.among(path, replicas):
            num_cached = replica.num_cached_blocks(request)
            num_blocks = num_cached + weight * replica.num_offloaded_blocks(request, num_cached)
            if num_blocks:
                held.append((1 << replica.number, num_blocks))
        return held

    def _picked(self, candidates: Candidates) -> int:
        """The place of the candidate that the picker takes."""
        kept = self._sticky(candidates) if self._options.affinity_threshold else None
        if kept is not None:
            candidates = candidates.only(kept)
        scores, rng = self._scores(candidates), self._rng
        if self._takes_best:
            chosen = one_of(best_of(scores), rng)
        elif self._options.picker == "weighted_random" and scores.any():
            (chosen,) = rng.choices(range(len(scores)), scores.tolist())
        else:
            chosen = rng.randrange(len(scores))
        return chosen if kept is None else int(kept[chosen])

    def _scores(self, candidates: Candidates) -> Floats:
        if len(candidates.num_active) < len(self._nothing):
            by_metrics = np.array(metric_total(self._by_metrics, candidates.gauges))
        else:
            by_metrics = self._scores_by_metrics.column
        return total(self._others, candidates, by_metrics)

    @property
    def _scores_by_metrics(self) -> MetricScores:
        """As of the last scrape."""
        scores, scrape = self._metric_scores, self._scrape
        if scrape and scrape.num_reads != scores.num_reads:
            scores.refresh(scrape.num_reads, scrape.gauges)
        return scores

    def _sticky(self, candidates: Candidates) -> NDArray[np.intp] | None:
        """The places of those that pass the affinity filter; None if it does not apply."""
        if candidates.most_matched_share < self._options.affinity_threshold:
            return None
        is_sticky = candidates.matched_share >= self._options.affinity_threshold
        most = self._options.max_penalty_tokens
        if most and not is_sticky.all():
            in_flight = candidates.num_tokens_in_flight
            if in_flight[is_sticky].min() - in_flight[~is_sticky].min() > most:
                return None
        return is_sticky.nonzero()[0]

    def _remember(self, path: Sequence[int], replica: int) -> None:
        """A prompt is sent to a replica."""
        if self._index is not None:
            self._index.add(path, replica)
        else:
            self._sent_before.add(path, replica)
        if self._cpu_index is not None:
            self._cpu_index.add(path, replica)

    def answered(self, request: Request, replica: int) -> None:
        self._in_flight.forget(request)
        self._num_active[replica] -= 1

    def left(self, replica: int) -> None:
        self._sent_before.forget(replica)
        if self._index is not None:
            self._index.forget(replica)
        if self._cpu_index is not None:
            self._cpu_index.forget(replica)
