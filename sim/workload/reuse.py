"""How much of its prompts a trace repeats: what a prefix cache could save at best."""

from collections.abc import Sequence

from sim.workload.trace import Segment, Trace


def reusable_tokens(trace: Trace, block_size: int = 16) -> int:
    """Prompt tokens that a prefix cache with room for everything would serve.

    Whole blocks only, and never the last token of a prompt, as vLLM looks them up; generated tokens are not counted,
    since a trace does not say which prompts repeat them.
    """
    tree = _PrefixTree()
    prompts = zip(trace.segments or (), trace.prompt_tokens.tolist(), strict=False)
    return sum(min(tree.add(segments), tokens - 1) // block_size * block_size for segments, tokens in prompts)


class _PrefixTree:
    """All prompts so far. A node is an integer; an edge is a segment. Where a prompt leaves what was there before, it
    comes to a new node, behind which nothing is shared.
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
