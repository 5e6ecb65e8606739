"""Which steps of a deployment replay a CUDA graph, and the batch size above which none does."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from sim.specs.engine import ResolvedEngine
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import GraphKind

SPOKEN = {"full": "a full graph", "piecewise": "a piecewise graph", "none": "no graph"}


class Replay(NamedTuple):
    """Steps of `first` to `last` tokens, or decoding requests, replay that kind of graph."""

    first: int
    last: int
    graph: GraphKind


def replays(engine: ResolvedEngine, largest: int, *, is_uniform_decode: bool) -> tuple[Replay, ...]:
    """Steps of 1 to `largest` tokens, or uniform decodes of so many requests, in runs of the same kind of graph."""
    dispatch, tokens_each = GraphDispatch.of(engine), engine.uniform_query_len if is_uniform_decode else 1
    kinds = (
        (number, dispatch.dispatch(number * tokens_each, is_uniform_decode=is_uniform_decode).graph)
        for number in range(1, largest + 1)
    )
    runs = [(kind, [tokens for tokens, _ in run]) for kind, run in groupby(kinds, key=lambda each: each[1])]
    return tuple(Replay(tokens[0], tokens[-1], kind) for kind, tokens in runs)


def replay_lines(engine: ResolvedEngine) -> Iterator[str]:
    """What is captured, what each kind of step replays, and where the cliff is, if there is one."""
    sizes = engine.cudagraph_capture_sizes
    if not sizes:
        yield "CUDA graphs: none; every step launches its kernels one by one"
        return
    yield f"CUDA graphs: {engine.cudagraph_mode}, {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    decodes = replays(engine, engine.max_num_seqs, is_uniform_decode=True)
    mixed = replays(engine, engine.max_num_batched_tokens, is_uniform_decode=False)
    yield from (f"  decoding {_range(run)} requests: {SPOKEN[run.graph]}" for run in decodes)
    yield from (f"  with prompts, {_range(run)} tokens: {SPOKEN[run.graph]}" for run in mixed)
    yield from (f"  cliff: {sentence}" for run in decodes[1:] for sentence in _cliff(engine, run))


def _range(run: Replay) -> str:
    return f"{run.first:,} to {run.last:,}" if run.first < run.last else f"{run.first:,}"


def _cliff(engine: ResolvedEngine, run: Replay) -> Iterator[str]:
    """Decode batch sizes at which the kind of graph gets worse, and what to set instead."""
    top, seqs = engine.cudagraph_capture_sizes[-1] // engine.uniform_query_len, engine.max_num_seqs
    if run.graph == "none" and run.first > top:
        yield (
            f"more than {top:,} requests have no graph; lower max_num_seqs to {top:,} or raise "
            f"max_cudagraph_capture_size to {seqs * engine.uniform_query_len:,}"
        )
    elif run.graph != "full":
        yield (
            f"max_num_seqs={seqs:,} is no captured size, so {_range(run)} requests lose their full graph; lower it to "
            f"{run.first - 1:,} or add {seqs * engine.uniform_query_len:,} to cudagraph_capture_sizes"
        )
