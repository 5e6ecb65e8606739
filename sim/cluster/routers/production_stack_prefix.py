"""production-stack's prefix-aware router: any replica that was sent the longest prefix, however short; nothing is evicted.

After vllm-project/production-stack @a6c01db0, routers/routing_logic.py and prefix/hashtrie.py. Its chunks are 128 characters;
here they are `chunk_tokens`, 32 at 4 characters a token. The last chunk of a prompt may be shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, one_of, place_of
from sim.cluster.routers.stretches import replicas_in
from sim.engine.request import Request


@dataclass(frozen=True)
class ProductionStackPrefixOptions(RouterOptions):
    chunk_tokens: int = option(32, at_least=1)

    @property
    def is_blind(self) -> bool:
        return True

    def router(self, fleet: Fleet) -> Router:
        return ProductionStackPrefix(fleet, self.chunk_tokens)


class ProductionStackPrefix(Router):
    """`_sent_to` has the replicas, as bits, that were sent a node of the prompts' tree; `_ended_at` a prompt that ends in one."""

    def __init__(self, fleet: Fleet, chunk_tokens: int) -> None:
        self._rng = fleet.rng()
        self._chunk_tokens = chunk_tokens
        self._prompts = fleet.prompts
        self._is_shared = fleet.prompts.is_shared
        self._everybody = (1 << fleet.num_replicas) - 1
        self._num_chunks = fleet.prompts.num_blocks(chunk_tokens)
        self._sent_to: dict[int, int] = {}
        self._ended_at: dict[int, int] = {}

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        path = [node for node in self._prompts.path(request.index) if self._num_chunks[node]]
        end = self._prompts.end(request.index) if request.num_prompt_tokens % self._chunk_tokens else None
        candidates = self._everybody
        if len(replicas) < candidates.bit_length():
            candidates = sum(1 << replica.number for replica in replicas)
        longest = self._longest(path, end, candidates)
        holders = (
            replicas
            if longest == candidates
            else [replicas[place_of(number, replicas)] for number in replicas_in(longest)]
        )
        chosen = one_of(holders, self._rng)
        bit = 1 << chosen.number
        for node in path:
            if self._is_shared[node]:
                self._sent_to[node] = self._sent_to.get(node, 0) | bit
        if end is not None and self._is_shared[end]:
            self._ended_at[end] = self._ended_at.get(end, 0) | bit
        return chosen

    def _longest(self, path: Sequence[int], end: int | None, everybody: int) -> int:
        """Of the candidates those that were sent the longest prefix."""
        found = everybody
        for node in path:
            if not (sent := self._sent_to.get(node, 0) & found):
                return found
            found = sent
        return found & self._ended_at.get(end, 0) or found if end is not None else found

    def left(self, replica: int) -> None:
        for sent_to in (self._sent_to, self._ended_at):
            for node in sent_to:
                sent_to[node] &= ~(1 << replica)
