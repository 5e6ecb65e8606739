"""SGLang's cache-aware router: the worker that was sent most of the prompt before, unless load is out of balance.

After sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs @026f853b and tree.rs; defaults as the gateway's command
line has them (main.rs @01f6c92a). Its tree is of characters, here of tokens, of which CHARS_PER_TOKEN make a tree's size.
Deliberate differences: of several workers that hold the whole match it takes whichever its hash map gives first, here the one
that got it first; a tree is cut by the stretches that prompts have in common.
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.prompts import PromptTree
from sim.cluster.routers.router import Fleet, Router, RouterOptions, numbered
from sim.engine.request import Request
from sim.engine.ticks import Ticks

CHARS_PER_TOKEN = 4
"""The guess of gateway-api-inference-extension, pkg/epp/scheduling/framework/plugins/multi/prefix/plugin.go."""


@dataclass(frozen=True)
class SglangCacheAwareOptions(RouterOptions):
    """`max_tree_size` is in characters and per worker."""

    cache_threshold: float = option(0.3, at_least=0, at_most=1)
    balance_abs_threshold: int = option(64, at_least=0)
    balance_rel_threshold: float = option(1.5, at_least=0)
    eviction_interval_s: float = option(120.0, at_least=0.001)
    max_tree_size: int = option(67_108_864, at_least=1)

    def router(self, fleet: Fleet) -> Router:
        return SglangCacheAware(self, fleet)


class SglangCacheAware(Router):
    """Balances the requests in flight; the tree records which worker was sent which prompts."""

    listens = True

    def __init__(self, options: SglangCacheAwareOptions, fleet: Fleet) -> None:
        self._options = options
        self._loads = Loads(fleet.num_replicas)
        self._prompts = fleet.prompts
        self._tree = WorkerTree(fleet.prompts, fleet.num_replicas)
        self._evictions = Ticks(options.eviction_interval_s, last_s=0.0)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        now_s, path = request.arrival_s, self._prompts.path(request.index)
        self._evict(now_s)
        fewest, most = self._loads.range_among(replicas)
        if self._is_imbalanced(fewest, most):
            chosen = next(replica for replica in replicas if self._loads.num_in_flight[replica.number] == fewest)
        else:
            chosen = numbered(self._by_prefix(request, path), replicas) or replicas[0]
        self._tree.insert(path, chosen.number, now_s)
        self._loads.sent(chosen.number)
        return chosen

    def _is_imbalanced(self, fewest: int, most: int) -> bool:
        is_apart = most - fewest > self._options.balance_abs_threshold
        return is_apart and most > fewest * self._options.balance_rel_threshold

    def _by_prefix(self, request: Request, path: Sequence[int]) -> int:
        """The worker that the tree names, whether or not it is a candidate: as the gateway has it, the first stands in for it."""
        num_matched, worker = self._tree.match(path, request.arrival_s)
        share = num_matched / request.num_prompt_tokens if request.num_prompt_tokens else 0.0
        return worker if share > self._options.cache_threshold else self._tree.smallest()

    def _evict(self, now_s: float) -> None:
        if self._evictions.passed(now_s):
            self._tree.evict(self._options.max_tree_size // CHARS_PER_TOKEN)

    def answered(self, request: Request, replica: int) -> None:  # noqa: ARG002 - a router's interface
        self._loads.answered(replica)

    def joined(self, replica: int) -> None:
        self._tree.add_worker(replica)

    def left(self, replica: int) -> None:
        self._tree.remove_worker(replica)


class Loads:
    """Requests in flight at each worker; the fewest and the most of all change by one at a time."""

    def __init__(self, num_workers: int) -> None:
        self.num_in_flight = [0] * num_workers
        self._num_workers_with = Counter({0: num_workers})
        self._fewest = self._most = 0

    def range_among(self, replicas: Sequence[Replica]) -> tuple[int, int]:
        """The fewest and the most that a candidate has."""
        if len(replicas) == len(self.num_in_flight):
            return self._fewest, self._most
        counts = [self.num_in_flight[replica.number] for replica in replicas]
        return min(counts), max(counts)

    def sent(self, worker: int) -> None:
        count = self._change(worker, 1)
        self._most = max(self._most, count)
        self._fewest += not self._num_workers_with[self._fewest]

    def answered(self, worker: int) -> None:
        count = self._change(worker, -1)
        self._fewest = min(self._fewest, count)
        self._most -= not self._num_workers_with[self._most]

    def _change(self, worker: int, by: int) -> int:
        before = self.num_in_flight[worker]
        count = self.num_in_flight[worker] = before + by
        self._num_workers_with[before] -= 1
        self._num_workers_with[count] += 1
        return count


class WorkerTree:
    """The workers that were sent each node of the prompts' tree, in order, with the last time of each.

    `_by_size` is a heap with an entry a worker, of its tokens now or of fewer, which it had before.
    """

    def __init__(self, prompts: PromptTree, num_workers: int) -> None:
        self._prompts = prompts
        self._is_shared = prompts.is_shared
        self._workers: dict[int, dict[int, None]] = {}
        self._last_s: list[dict[int, float]] = [{} for _ in range(num_workers)]
        self._num_tokens: list[float] = [0] * num_workers
        self._sort()

    def match(self, path: Sequence[int], now_s: float) -> tuple[int, int]:
        """Tokens of a prompt that the tree has, and the worker that was first sent all of them; that counts as a use."""
        known = 0
        while known < len(path) and self._workers.get(path[known]):
            known += 1
        if not known:
            return 0, 0
        worker = next(iter(self._workers[path[known - 1]]))
        self._last_s[worker].update(dict.fromkeys(path[:known], now_s))
        return self._prompts.end_tokens[path[known - 1]], worker

    def smallest(self) -> int:
        """The worker that was sent the fewest different tokens."""
        num_tokens, by_size = self._num_tokens, self._by_size
        while (current := (num_tokens[by_size[0][1]], by_size[0][1])) != by_size[0]:
            heapq.heapreplace(by_size, current)
        return by_size[0][1]

    def _sort(self) -> None:
        """Some have fewer tokens than they had."""
        self._by_size = sorted(zip(self._num_tokens, range(len(self._num_tokens)), strict=True))

    def insert(self, path: Sequence[int], worker: int, now_s: float) -> None:
        """A prompt is sent to a worker."""
        for node in path:
            if node not in self._last_s[worker]:
                self._num_tokens[worker] += self._prompts.num_tokens(node)
                if self._is_shared[node]:
                    self._workers.setdefault(node, {})[worker] = None
            self._last_s[worker][node] = now_s

    def evict(self, max_tokens: int) -> None:
        """Cut each worker's part to `max_tokens`, from the leaves that were used longest ago; of equals what came first."""
        for worker, last_s in enumerate(self._last_s):
            if not last_s or self._num_tokens[worker] <= max_tokens:
                continue
            num_children = Counter(self._prompts.parent(node) for node in last_s)
            came = {node: number for number, node in enumerate(last_s)}
            leaves = [(time_s, came[node], node) for node, time_s in last_s.items() if not num_children[node]]
            heapq.heapify(leaves)
            while self._num_tokens[worker] > max_tokens:
                _, _, node = heapq.heappop(leaves)
                self._forget(node, worker)
                parent = self._prompts.parent(node)
                num_children[parent] -= 1
                if parent in last_s and not num_children[parent]:
                    heapq.heappush(leaves, (last_s[parent], came[parent], parent))
        self._sort()

    def add_worker(self, worker: int) -> None:
        """One that was sent nothing."""
        self._num_tokens[worker] = 0
        self._sort()

    def remove_worker(self, worker: int) -> None:
        """What it was sent is forgotten, and it is never the smallest."""
        for node in list(self._last_s[worker]):
            self._forget(node, worker)
        self._num_tokens[worker] = math.inf
        self._sort()

    def _forget(self, node: int, worker: int) -> None:
        del self._last_s[worker][node]
        if self._is_shared[node]:
            del self._workers[node][worker]
        self._num_tokens[worker] -= self._prompts.num_tokens(node)
