"""How much of its prompts a trace repeats: what a prefix cache could save at best."""

from collections.abc import Sequence

import numpy as np

from sim.workload.adapters import told_apart
from sim.workload.conversations import repeated_tokens, session_numbers, with_answers
from sim.workload.trace import Segment, Trace


def reusable_tokens(trace: Trace, block_size: int = 16) -> int:
    """Prompt tokens that a prefix cache with room for everything would serve, answers that later turns repeat included.

    Whole blocks only, and never the last token of a prompt, as vLLM looks them up, nor that of an answer, which is never
    computed.
    """
    trace = told_apart(trace)
    if trace.segments is not None:
        shared = np.array(_known_before(trace, trace.segments))
    elif trace.session_id is not None:
        shared = repeated_tokens(session_numbers(trace.session_id), trace.prompt_tokens, trace.output_tokens - 1)
    else:
        return 0
    return int((np.minimum(shared, trace.prompt_tokens - 1) // block_size * block_size).sum())


def _known_before(trace: Trace, prompts: Sequence[tuple[Segment, ...]]) -> list[int]:
    """The number of first tokens that each prompt shares with the prompts before it."""
    tree = _PrefixTree()
    if trace.session_id is None:
        return [tree.add(prompt) for prompt in prompts]
    answers = np.maximum(0, trace.output_tokens - 1).tolist()
    paths = with_answers(prompts, session_numbers(trace.session_id), answers)
    shared = []
    for prompt, path in zip(prompts, paths, strict=True):
        shared.append(tree.add(prompt))
        tree.add(path)
    return shared


class _PrefixTree:
    """All prompts so far. A node is an integer; an edge is a segment. Where a prompt differs from all before, it
    gets a new node, behind which nothing is shared.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int, int], int] = {}  # (node, content id, tokens) -> node
        self._longest: dict[tuple[int, int], int] = {}  # (node, content id) -> tokens of the longest such segment

    def add(self, segments: Sequence[Segment]) -> int:
        """Inserts a prompt; returns how many of its first tokens were there before."""
        node, shared = 0, 0
        for content, tokens in segments:
            longest = self._longest.get((node, content), 0)
            shared += min(tokens, longest)
            if tokens > longest:
                self._longest[node, content] = tokens
            node = self._children.setdefault((node, content, tokens), len(self._children) + 1)
        return shared
