"""A what-if: the shortest job first. It asks what no server knows, how long an answer will be; vLLM has no such policy."""

import bisect

from sim.engine.queues import PriorityQueue
from sim.engine.request import Request


class ShortestJobQueue(PriorityQueue):
    """Fewest tokens of prompt and answer first; of equals the one that arrived first."""

    def add(self, request: Request) -> None:
        bisect.insort(self, request, key=_length)


def _length(request: Request) -> tuple[int, float, int]:
    return (request.num_prompt_tokens + request.max_tokens, request.arrival_s, request.index)
