"""What to measure on a GPU: layer stacks of real shapes, batches, and ways to run them. Needs nothing but Python.

No public table has these: whole steps eager against replayed from a CUDA graph, launch-bound and not, padded against exact,
and what the graph pool takes by number and size of captures.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

Mode = Literal["eager", "graph"]
BYTES = 2  # bf16
CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PAD_FROM = (3, 33, 129, 200)  # exact sizes that are padded to the next capture size
POOLS = ((1,), (8,), (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 128, 256), tuple(range(8, 257, 8)))


class Stack(NamedTuple):
    """A few decoder layers as one GPU holds them; `experts` of 0 are a dense model."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    num_experts: int = 0
    num_experts_per_tok: int = 0

    @property
    def weight_bytes(self) -> int:
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        experts = max(1, self.num_experts)
        return BYTES * self.num_layers * (attention + experts * 3 * self.hidden_size * self.intermediate_size)


STACKS = (
    Stack("llama-8b", 8, 4096, 32, 8, 128, 14336),
    Stack("llama-70b-tp8", 16, 8192, 8, 1, 128, 3584),
    Stack("mixtral-tp8", 8, 4096, 4, 1, 128, 1792, 8, 2),
)


class Step(NamedTuple):
    """One step to time: decodes at a context, a chunk beside them, padded to so many tokens."""

    stack: str
    mode: Mode
    num_decodes: int
    context_tokens: int
    chunk_tokens: int = 0
    padded_to: int = 0

    @property
    def num_tokens(self) -> int:
        return max(self.padded_to, self.num_decodes + self.chunk_tokens)


class Pool(NamedTuple):
    """Graphs to capture together, for the memory that their pool takes."""

    stack: str
    sizes: tuple[int, ...]


def steps() -> Iterator[Step]:
    """Decodes eager and replayed, padded beside exact, and mixed steps, which run without a full graph."""
    for stack in STACKS:
        for context_tokens in (256, 2048):
            for size in CAPTURE_SIZES:
                yield Step(stack.name, "eager", size, context_tokens)
                yield Step(stack.name, "graph", size, context_tokens)
        for size in PAD_FROM:
            padded = next(capture for capture in CAPTURE_SIZES if capture >= size)
            yield Step(stack.name, "graph", size, 1024)
            yield Step(stack.name, "graph", size, 1024, padded_to=padded)
        for decodes in (0, 8, 64):
            for chunk in (64, 512, 2048):
                yield Step(stack.name, "eager", decodes, 1024, chunk)


def pools() -> Iterator[Pool]:
    for stack in STACKS:
        for sizes in POOLS:
            yield Pool(stack.name, sizes)


def stack_named(name: str) -> Stack:
    return next(stack for stack in STACKS if stack.name == name)
