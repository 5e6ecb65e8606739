"""The shared prefixes of a trace's prompts as a tree: each prompt is a path from the root.

The tree is complete before the first request arrives, so that routers store facts by node and never split one. Two prompts share
nodes exactly as far as their tokens are equal, under the same adapter.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sim.engine.content import output_id, private_prompt_id
from sim.workload.adapters import told_apart
from sim.workload.columns import Ints
from sim.workload.conversations import Path, first_tokens, num_tokens, session_numbers
from sim.workload.trace import Trace

ROOT = 0


class PromptTree:
    """Nodes are numbers, the root is 0; `end_tokens` says up to which token of a prompt a node reaches.

    Each prompt ends at the end of a node, and every other node has several children; `is_shared` marks the nodes on the paths
    of more than one prompt, or all where a prompt may be sent again: what was sent elsewhere, nobody asks for.
    """

    def __init__(self, prompts: Iterable[Path], *, sends_again: bool = False) -> None:
        builder = _Builder()
        self._ends: list[int] = [builder.insert(path) for path in prompts]
        self.end_tokens: list[int] = builder.end_tokens
        self._parents = builder.parents_that_part(self._ends)
        self.is_shared = [True] * len(self) if sends_again else self._shared()

    def __len__(self) -> int:
        return len(self.end_tokens)

    def _shared(self) -> list[bool]:
        """All but those at which one prompt ends and no other goes on."""
        num_prompts = np.bincount(self._ends, minlength=len(self))
        num_children = np.bincount(self._parents, minlength=len(self))
        shared: list[bool] = ((num_children > 0) | (num_prompts > 1)).tolist()
        return shared

    def path(self, row: int) -> list[int]:
        """The nodes of a prompt, from the one below the root to the one at which it ends."""
        nodes, parents = [], self._parents
        node = self._ends[row]
        while node != ROOT:
            nodes.append(node)
            node = parents[node]
        nodes.reverse()
        return nodes

    def end(self, row: int) -> int:
        """The node at whose end a prompt ends."""
        return self._ends[row]

    def parent(self, node: int) -> int:
        """The parent of each node."""
        return self._parents[node]

    def num_tokens(self, node: int) -> int:
        """Tokens of a prompt that lie in a node."""
        return self.end_tokens[node] - self.end_tokens[self._parents[node]]

    def num_blocks(self, block_size: int, max_tokens: int | None = None) -> list[int]:
        """For each node the blocks of a prompt whose last token lies in it, of the first so many tokens."""
        ends = np.array(self.end_tokens, dtype=np.int64)
        begins = ends[np.array(self._parents, dtype=np.int64)]
        if max_tokens is not None:
            ends, begins = np.minimum(ends, max_tokens), np.minimum(begins, max_tokens)
        counts: list[int] = (ends // block_size - begins // block_size).tolist()
        return counts


def prompts_as_sent(trace: Trace, answers: Ints) -> Iterable[Path]:
    """What each prompt is made of; `answers` are the tokens that each request generates, which later turns repeat."""
    trace = told_apart(trace)
    if trace.segments is not None:
        return trace.segments
    prompts = trace.prompt_tokens.tolist()
    if trace.session_id is not None:
        return _turns(session_numbers(trace.session_id).tolist(), prompts, answers.tolist())
    return (((private_prompt_id(row), tokens),) for row, tokens in enumerate(prompts))


def _turns(sessions: Sequence[int], prompts: Sequence[int], answers: Sequence[int]) -> Iterator[Path]:
    """Each prompt begins with as much of the conversation so far as it has room for."""
    conversations: dict[int, Path] = {}
    for row, (session, prompt_tokens) in enumerate(zip(sessions, prompts, strict=True)):
        heard = first_tokens(conversations.get(session, ()), prompt_tokens)
        prompt = (*heard, (private_prompt_id(row), prompt_tokens - num_tokens(heard)))
        conversations[session] = (*prompt, (output_id(row), answers[row]))
        yield prompt


class _Builder:
    """A tree whose nodes are stretches of one content each; `_children` finds one by parent, content and offset in it."""

    def __init__(self) -> None:
        self.end_tokens = [0]
        self._parents = [ROOT]
        self._lengths = [0]
        self._contents = [(0, 0)]  # of each node: the content, and where in it the node begins
        self._children: dict[tuple[int, int, int], int] = {}

    def insert(self, path: Path) -> int:
        """The node at whose end a prompt of these segments ends."""
        node, children, lengths = ROOT, self._children, self._lengths
        for content, tokens in path:
            child = children.get((node, content, 0))
            if child is not None and lengths[child] == tokens:
                node = child  # the usual case
                continue
            offset = 0
            while offset < tokens:
                node = self._descend(node, content, offset, tokens - offset)
                offset = self._contents[node][1] + lengths[node]
        return node

    def _descend(self, node: int, content: int, offset: int, num_tokens: int) -> int:
        """A child of the node of at most so many tokens: the one that is there, its head, or a new one."""
        child = self._children.get((node, content, offset))
        if child is None:
            return self._add(node, content, offset, num_tokens)
        return child if self._lengths[child] <= num_tokens else self._split(child, num_tokens)

    def _add(self, parent: int, content: int, offset: int, num_tokens: int) -> int:
        node = len(self.end_tokens)
        self.end_tokens.append(self.end_tokens[parent] + num_tokens)
        self._lengths.append(num_tokens)
        self._parents.append(parent)
        self._contents.append((content, offset))
        self._children[parent, content, offset] = node
        return node

    def _split(self, node: int, num_tokens: int) -> int:
        """A new node for the first tokens of one, which keeps the rest and its number."""
        content, offset = self._contents[node]
        head = self._add(self._parents[node], content, offset, num_tokens)
        self._parents[node] = head
        self._lengths[node] -= num_tokens
        self._contents[node] = (content, offset + num_tokens)
        self._children[head, content, offset + num_tokens] = node
        return head

    def parents_that_part(self, ends: Sequence[int]) -> list[int]:
        """The nearest node above each that has several children or at which a prompt ends; the other nodes can be left out."""
        parents = np.array(self._parents, dtype=np.int64)
        stays = np.bincount(parents, minlength=len(parents)) != 1
        stays[list(ends)] = True
        stays[ROOT] = True
        while not (passes := stays[parents]).all():
            parents = np.where(passes, parents, parents[parents])
        nearest: list[int] = parents.tolist()
        return nearest
