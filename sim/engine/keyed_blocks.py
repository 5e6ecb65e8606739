"""A request's leading blocks that others may ask for."""

from sim.engine.prefix_cache import Held
from sim.engine.spans import Span


class KeyedBlocks:
    """What `count` blocks contain, by spans, and by KV group the copies that the request holds of some of them."""

    def __init__(self, spans: list[Span], passed: list[int]) -> None:
        self.spans = spans
        self.held = [Held(first) for first in passed]

    @property
    def count(self) -> int:
        return self.spans[-1].end if self.spans else 0

    def add(self, key: int, count: int) -> None:
        """More blocks get keys, from this one on."""
        self.spans.append(Span(self.count, key, count))

    def key(self, block: int) -> int:
        """What a block contains."""
        span = next(span for span in self.spans if block < span.end)
        return span.key + block - span.block
