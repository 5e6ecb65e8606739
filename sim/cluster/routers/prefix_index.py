"""Which replica was sent which blocks of prompts: a router's own index, without any information from engines."""

from collections import OrderedDict
from collections.abc import Sequence

from sim.cluster.routers.prompts import PromptTree
from sim.cluster.routers.stretches import Stretch


class PrefixIndex:
    """Each replica's last blocks, as many as its capacity, least recently sent first to go; a prompt's first block is its oldest.

    Kept by nodes of the prompts' tree: a replica holds the last blocks of a node, all of them where its bit is in `_whole`.
    """

    def __init__(self, prompts: PromptTree, num_blocks: Sequence[int], capacities: Sequence[int]) -> None:
        self._num_blocks = num_blocks
        self._is_shared = prompts.is_shared
        self._capacities = capacities
        self._whole: dict[int, int] = {}
        self._rest: dict[int, dict[int, int]] = {}
        self._held: list[OrderedDict[int, int]] = [OrderedDict() for _ in capacities]
        self._num_held = [0] * len(capacities)

    def matched(self, path: Sequence[int]) -> list[Stretch]:
        """The blocks of a prompt by their holders, up to the first that nobody holds; a holder may lack some of them."""
        found: list[Stretch] = []
        holders = num_blocks = 0
        for node in path:
            count = self._num_blocks[node]
            if not count:
                continue
            whole = self._whole.get(node, 0)
            if whole != holders:
                if num_blocks:
                    found.append((holders, num_blocks))
                holders, num_blocks = whole, 0
            if not whole:
                break
            num_blocks += count
            rest = self._rest.get(node)
            if rest:
                found += [(1 << replica, num_left) for replica, num_left in rest.items()]
        if num_blocks:
            found.append((holders, num_blocks))
        return found

    def add(self, path: Sequence[int], replica: int) -> None:
        """A prompt has been sent to a replica."""
        held, bit = self._held[replica], 1 << replica
        for node in path:
            count = self._num_blocks[node]
            if not count:
                continue
            num_there = held.get(node, 0)
            self._num_held[replica] += count - num_there
            held[node] = count
            if num_there:
                held.move_to_end(node)
            if self._is_shared[node]:
                self._whole[node] = self._whole.get(node, 0) | bit
                if rest := self._rest.get(node):
                    rest.pop(replica, None)
        self._evict(replica)

    def forget(self, replica: int) -> None:
        """A replica is gone with all that it was sent."""
        for node in self._held[replica]:
            if self._is_shared[node]:
                self._loses(node, replica, 0)
        self._held[replica].clear()
        self._num_held[replica] = 0

    def _evict(self, replica: int) -> None:
        held = self._held[replica]
        while (excess := self._num_held[replica] - self._capacities[replica]) > 0:
            node, count = next(iter(held.items()))
            num_evicted = min(excess, count)
            self._num_held[replica] -= num_evicted
            if num_evicted == count:
                del held[node]
            else:
                held[node] = count - num_evicted
            if self._is_shared[node]:
                self._loses(node, replica, count - num_evicted)

    def _loses(self, node: int, replica: int, num_left: int) -> None:
        """A replica keeps only the last blocks of a node."""
        self._whole[node] &= ~(1 << replica)
        rest = self._rest.setdefault(node, {})
        rest[replica] = num_left
        if not num_left:
            del rest[replica]
