"""Conversations: turns that come one after another, each repeating all that was said before, and calls of an agent within a turn."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.workload.columns import Floats, Ints
from sim.workload.lengths import Counts, Geometric
from sim.workload.waits import Waits

Flags = NDArray[np.bool_]


class Turns(NamedTuple):
    """One entry a request, session by session: its session, its call of the session from 0, whether it begins a turn, the
    seconds that it waits, and those since the session began.
    """

    session: Ints
    call: Ints
    begins_turn: Flags
    wait_s: Floats
    since_start_s: Floats


class Prompts(NamedTuple):
    """How long they are, and which begin anew instead of repeating what was said."""

    tokens: Ints
    begins_anew: Flags


def draw_turns(
    num_requests: int,
    turns: Counts,
    calls: Counts,
    gaps: tuple[Waits, Waits],
    streams: tuple[np.random.Generator, np.random.Generator],
) -> Turns:
    """`num_requests` calls in turns, and these in sessions, the last cut short; `gaps` lie before turns and before tools' answers."""
    turning, calling = streams
    begins_turn = _begins(num_requests, calls, calling)
    turn = np.cumsum(begins_turn) - 1
    begins = begins_turn & _begins(int(turn[-1]) + 1, turns, turning)[turn]
    session = np.cumsum(begins) - 1
    opening = np.flatnonzero(begins)[session]  # the request with which each one's session begins
    before_turn_s, before_call_s = gaps[0].draw(num_requests, turning), gaps[1].draw(num_requests, calling)
    wait_s = np.where(begins, 0.0, np.where(begins_turn, before_turn_s, before_call_s))
    elapsed = np.cumsum(wait_s)
    return Turns(session, np.arange(num_requests) - opening, begins_turn, wait_s, elapsed - elapsed[opening])


def _begins(count: int, lengths: Counts, rng: np.random.Generator) -> Flags:
    """Which of `count` in a row are the first of runs with these lengths."""
    if isinstance(lengths, Geometric):
        begins = rng.random(count) < 1 / lengths.mean
    else:
        ends = np.cumsum(lengths.draw(count, rng))
        begins = np.zeros(count, dtype=np.bool_)
        begins[ends[ends < count]] = True
    begins[0] = True
    return begins


def conversation_prompts(turns: Turns, new_tokens: Ints, output_tokens: Ints, prefix_tokens: int) -> Prompts:
    """The shared prefix, all earlier messages and answers of the session, and the new message."""
    said_before = np.cumsum(new_tokens + output_tokens) - (new_tokens + output_tokens)
    opening = np.arange(len(new_tokens)) - turns.call
    tokens: Ints = prefix_tokens + said_before - said_before[opening] + new_tokens
    return Prompts(tokens, turns.call == 0)


def prompts_in_window(
    turns: Turns,
    new_tokens: Ints,
    output_tokens: Ints,
    prefix_tokens: int,
    max_context_tokens: int,
    summary_tokens: int,
) -> Prompts:
    """The same, where a prompt that would be longer than the window begins anew with a summary of what was said."""
    tokens, begins_anew = np.empty_like(new_tokens), turns.call == 0
    said = 0
    rows = zip(turns.call.tolist(), new_tokens.tolist(), output_tokens.tolist(), strict=True)
    for row, (call, new, output) in enumerate(rows):
        said = said if call else prefix_tokens
        if call and said + new > max_context_tokens:
            said, begins_anew[row] = prefix_tokens + summary_tokens, True
        tokens[row] = min(said + new, max_context_tokens)
        said = int(tokens[row]) + output
    return Prompts(tokens, begins_anew)
