"""Which CUDA graph a step replays, as vLLM's dispatcher decides, and the number of tokens it is padded to."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from sim.specs.capture_sizes import full_graph_sizes
from sim.specs.engine import CudagraphMode, ResolvedEngine
from sim.steptime.protocol import GraphKind, StepShape


class Dispatch(NamedTuple):
    """A step's graph: the whole step ("full"), all but attention ("piecewise"), or none; and the tokens it computes."""

    graph: GraphKind
    num_tokens: int


@dataclass(frozen=True, slots=True)
class GraphDispatch:
    """vLLM's rule per step. `capture_sizes` ascend; a batch above the largest runs without a graph at its exact size.

    FULL holds any batch in one graph; FULL_DECODE_ONLY only uniform decodes, all others run without; FULL_AND_PIECEWISE
    leaves the others to piecewise graphs; PIECEWISE has no full graphs. A batch is uniform if each request has `query_len`
    tokens, which is one without speculation.
    """

    mode: CudagraphMode
    capture_sizes: tuple[int, ...]
    max_num_seqs: int
    query_len: int = 1
    full_sizes: frozenset[int] = field(init=False)

    @classmethod
    def of(cls, engine: ResolvedEngine) -> Self:
        """That of an engine."""
        return cls(engine.cudagraph_mode, engine.cudagraph_capture_sizes, engine.max_num_seqs, engine.uniform_query_len)

    def __post_init__(self) -> None:
        sizes = full_graph_sizes(
            self.mode, self.capture_sizes, max_num_seqs=self.max_num_seqs, query_len=self.query_len
        )
        object.__setattr__(self, "full_sizes", frozenset(sizes))

    def is_uniform(self, shape: StepShape) -> bool:
        """Whether it only decodes, and every request has as many tokens as it can have."""
        num_decodes, _, chunks, _, num_drafts = shape
        return not chunks and num_drafts == num_decodes * (self.query_len - 1)

    def dispatch(self, num_tokens: int, *, is_uniform_decode: bool) -> Dispatch:
        """The graph for a step of so many tokens."""
        index = bisect_left(self.capture_sizes, num_tokens)
        if self.mode == "NONE" or index == len(self.capture_sizes):
            return Dispatch("none", num_tokens)
        padded = self.capture_sizes[index]
        if padded in self.full_sizes and (is_uniform_decode or self.mode == "FULL"):
            return Dispatch("full", padded)
        if self.mode in {"PIECEWISE", "FULL_AND_PIECEWISE"}:
            return Dispatch("piecewise", padded)
        return Dispatch("none", num_tokens)
