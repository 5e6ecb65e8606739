"""The contents of a conversation's turns: each prompt begins with the turn before it, answer included.

Without `hash_ids` a trace says only how long turns are: a prompt that is shorter than the conversation so far is the
beginning of it, what is longer is new. With `hash_ids` the prompts are what these say, and an answer is what the next
prompt has in its place.
"""

from collections.abc import Sequence

import numpy as np

from sim.workload.columns import Ints
from sim.workload.trace import Segment

Path = Sequence[Segment]


def session_numbers(session_id: Sequence[str]) -> Ints:
    """The session of each request as a number, from 0 on as they begin."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in session_id], dtype=np.int64)


def repeated_tokens(sessions: Ints, prompts: Ints, answers: Ints) -> Ints:
    """How many tokens of each prompt the session's turn before it had, its answer included; 0 for a first turn."""
    order = np.argsort(sessions, kind="stable")
    follows = sessions[order][1:] == sessions[order][:-1]
    repeated = np.zeros(len(order), dtype=np.int64)
    repeated[order[1:]] = np.where(follows, np.minimum(prompts[order[1:]], (prompts + answers)[order[:-1]]), 0)
    return repeated


def with_answers(prompts: Sequence[Path], sessions: Ints, answers: Sequence[int]) -> list[Path]:
    """What prompts are made of, and behind each its answer as far as the next prompt of the session repeats it."""
    paths = list(prompts)
    latest: dict[int, int] = {}
    for row, (session, prompt) in enumerate(zip(sessions.tolist(), prompts, strict=True)):
        previous = latest.get(session)
        if previous is not None and _begins_with(prompt, prompts[previous]):
            paths[previous] = first_tokens(prompt, num_tokens(prompts[previous]) + answers[previous])
        latest[session] = row
    return paths


def num_tokens(path: Path) -> int:
    return sum([tokens for _, tokens in path])


def _begins_with(path: Path, earlier: Path) -> bool:
    if not 0 < len(earlier) <= len(path):
        return False
    last, (content, tokens) = len(earlier) - 1, earlier[-1]
    return path[:last] == earlier[:last] and path[last][0] == content and path[last][1] >= tokens


def first_tokens(path: Path, missing: int) -> Path:
    """Its beginning, or all of it where it is shorter."""
    kept: list[Segment] = []
    for content, tokens in path:
        if missing <= 0:
            break
        kept.append((content, min(tokens, missing)))
        missing -= tokens
    return tuple(kept)
