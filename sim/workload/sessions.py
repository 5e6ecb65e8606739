"""Conversations: turns that come one after another, each repeating all that was said before."""

from typing import NamedTuple

import numpy as np

from sim.workload.columns import Floats, Ints


class Turns(NamedTuple):
    """One entry a request, session by session: its session, its turn there from 0, the seconds since the session began."""

    session: Ints
    turn: Ints
    since_start_s: Floats


def draw_turns(num_requests: int, mean_turns: float, turn_gap_s: float, rng: np.random.Generator) -> Turns:
    """`num_requests` turns in sessions of geometrically many turns, exponential gaps between the turns of a session."""
    begins = rng.random(num_requests) < 1 / mean_turns
    begins[0] = True
    session = np.cumsum(begins) - 1
    opening = np.flatnonzero(begins)[session]  # the request with which each one's session begins
    elapsed = np.cumsum(np.where(begins, 0.0, rng.exponential(turn_gap_s, size=num_requests)))
    return Turns(session, np.arange(num_requests) - opening, elapsed - elapsed[opening])


def conversation_prompts(turns: Turns, new_tokens: Ints, output_tokens: Ints, prefix_tokens: int) -> Ints:
    """Prompt lengths: the shared prefix, all earlier messages and answers of the session, and the new message."""
    said_before = np.cumsum(new_tokens + output_tokens) - (new_tokens + output_tokens)
    opening = np.arange(len(new_tokens)) - turns.turn
    prompts: Ints = prefix_tokens + said_before - said_before[opening] + new_tokens
    return prompts
