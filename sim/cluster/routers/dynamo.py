"""Dynamo's KV router: the least cost of blocks to compute and blocks in use.

After ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs @07a6c9ce: `prefill_load_scale` x prompt blocks to compute,
this prompt's less those that the worker holds, + blocks of the prompts in flight there, this one's included, + `request_weight`
x requests in flight. `prefill_load_scale` was called overlap_score_weight before; with the defaults old and new form are one.
Without KV events (`kv_events: false`) a worker is taken to hold for `ttl_s` what it was sent. Deliberate differences: host, disk
and shared caches and the decay of credit are left out; caches are read at this instant.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.prefilling import Prefilling
from sim.cluster.routers.router import Fleet, Router, RouterOptions, one_of
from sim.cluster.routers.sent_before import SentBefore
from sim.engine.records import Floats
from sim.engine.request import Request


@dataclass(frozen=True)
class DynamoOptions(RouterOptions):
    overlap_credit: float = option(1.0, at_least=0, at_most=1)
    prefill_load_scale: float = option(1.0, at_least=0)
    request_weight: float = option(0.0, at_least=0)
    temperature: float = option(0.0, at_least=0)
    kv_events: bool = option(True)
    ttl_s: float = option(120.0, at_least=0)

    def router(self, fleet: Fleet) -> Router:
        return Dynamo(self, fleet)


class Dynamo(Router):
    """Counts, by node of the prompts' tree, which prompts are in flight where, and when each was last sent there."""

    listens = True

    def __init__(self, options: DynamoOptions, fleet: Fleet) -> None:
        self._options = options
        self._rng = fleet.rng()
        fleet.require_same_blocks("dynamo")
        self._block_size = fleet.block_size
        self._prompts = fleet.prompts
        self._is_shared = fleet.prompts.is_shared
        self._num_blocks = fleet.prompts.num_blocks(self._block_size)
        self._sent_before = SentBefore(fleet.prompts)
        self._prefilling = Prefilling(fleet.num_replicas)
        self._num_active: Floats = np.zeros(fleet.num_replicas)
        self._num_active_blocks: Floats = np.zeros(fleet.num_replicas)
        self._in_flight: dict[int, dict[int, int]] = {}
        self._sent_s: dict[int, dict[int, float]] = {}

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        whole_path = self._prompts.path(request.index)
        path = [node for node in whole_path if self._num_blocks[node]]
        self._prefilling.refresh(request.arrival_s)
        num_held = self._num_held(request, path, self._sent_before.among(whole_path, replicas))
        costs = self._costs(request, path, num_held)
        if len(replicas) < len(costs):
            costs = costs[[replica.number for replica in replicas]]
        chosen = replicas[self._cheapest(costs)]
        num_to_compute = request.num_prompt_tokens - num_held.get(chosen.number, 0) * self._block_size
        self._prefilling.add(request, chosen.number, float(num_to_compute))
        self._sent_before.add(whole_path, chosen.number)
        self._sent(path, chosen.number, request.arrival_s)
        return chosen

    def _num_held(self, request: Request, path: Sequence[int], replicas: Iterable[Replica]) -> dict[int, int]:
        """Leading blocks of the prompt that some candidates hold, or are taken to hold, by their numbers."""
        if self._options.kv_events:
            return {candidate.number: candidate.num_cached_blocks(request) for candidate in replicas}
        held = {replica.number: 0 for replica in replicas}
        holders, since_s = set(held), request.arrival_s - self._options.ttl_s
        for node in path:
            holders &= {replica for replica, sent_s in self._sent_s.get(node, {}).items() if sent_s >= since_s}
            for replica in sorted(holders):
                held[replica] += self._num_blocks[node]
        return held

    def _costs(self, request: Request, path: Sequence[int], num_held: dict[int, int]) -> Floats:
        """Of all replicas, by their numbers; what would change nothing is left out."""
        options = self._options
        costs = (self._prefilling.num_tokens + request.num_prompt_tokens) / self._block_size
        for replica, num_blocks in num_held.items():
            costs[replica] = max(0.0, costs[replica] - options.overlap_credit * num_blocks)
        if options.prefill_load_scale != 1.0:
            costs *= options.prefill_load_scale
        costs += self._num_blocks_with(path)
        if options.request_weight:
            costs += options.request_weight * self._num_active
        return costs

    def _num_blocks_with(self, path: Sequence[int]) -> Floats:
        """Distinct blocks of the prompts in flight at each replica, this prompt's included."""
        num_blocks = self._num_active_blocks + sum([self._num_blocks[node] for node in path])
        for node in path:
            for replica in self._in_flight.get(node, ()):
                num_blocks[replica] -= self._num_blocks[node]
        return num_blocks

    def _cheapest(self, costs: Floats) -> int:
        """The least cost or, with a temperature, any by the softmax of costs over their range."""
        least, temperature = costs[costs.argmin()], self._options.temperature
        if not temperature or not (span := costs.max() - least):
            cheapest: list[int] = (costs == least).nonzero()[0].tolist()
            return one_of(cheapest, self._rng)
        weights = [exp(-(cost - least) / (span * temperature)) for cost in costs.tolist()]
        return self._rng.choices(range(len(weights)), weights)[0]

    def _sent(self, path: Sequence[int], replica: int, now_s: float) -> None:
        num_new_blocks = 0
        for node in path:
            if not self._is_shared[node]:
                num_new_blocks += self._num_blocks[node]
                continue
            in_flight = self._in_flight.get(node)
            if in_flight is None:
                in_flight = self._in_flight[node] = {}
            count = in_flight[replica] = in_flight.get(replica, 0) + 1
            if count == 1:
                num_new_blocks += self._num_blocks[node]
            if not self._options.kv_events:
                self._sent_s.setdefault(node, {})[replica] = now_s
        self._num_active[replica] += 1
        self._num_active_blocks[replica] += num_new_blocks

    def answered(self, request: Request, replica: int) -> None:
        self._prefilling.forget(request)
        num_left_blocks = 0
        for node in self._prompts.path(request.index):
            if not self._is_shared[node]:
                num_left_blocks += self._num_blocks[node]
                continue
            in_flight = self._in_flight.get(node)
            if in_flight is None:
                continue
            in_flight[replica] -= 1
            if not in_flight[replica]:
                del in_flight[replica]
                num_left_blocks += self._num_blocks[node]
            if not in_flight:
                del self._in_flight[node]
        self._num_active[replica] -= 1
        self._num_active_blocks[replica] -= num_left_blocks

    def left(self, replica: int) -> None:
        self._sent_before.forget(replica)
        for sent_s in self._sent_s.values():
            sent_s.pop(replica, None)
