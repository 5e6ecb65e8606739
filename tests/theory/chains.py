"""Queues in parallel as a Markov chain: Poisson arrivals, exponential servers of rate 1, and a rule for who is joined."""

from collections.abc import Callable, Iterator
from itertools import combinations, combinations_with_replacement
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import spsolve

Lengths = tuple[int, ...]
"""Requests at each server, the longest queue first: servers are alike, so that only the lengths count."""
Joins = Callable[[Lengths], Iterator[tuple[int, float]]]
"""The places among the lengths that an arrival may join, with their odds."""


def any_queue(lengths: Lengths) -> Iterator[tuple[int, float]]:
    """Each at even odds."""
    for place in range(len(lengths)):
        yield place, 1 / len(lengths)


def shortest_queue(lengths: Lengths) -> Iterator[tuple[int, float]]:
    yield len(lengths) - 1, 1.0


def shorter_of_two(lengths: Lengths) -> Iterator[tuple[int, float]]:
    """Of two different ones, each pair at even odds."""
    pairs = list(combinations(range(len(lengths)), 2))
    for _, shorter in pairs:
        yield shorter, 1 / len(pairs)


class Waits(NamedTuple):
    """Mean time before service, in services, and the share of requests that wait at all."""

    mean: float
    share: float


def waits(num_servers: int, rho: float, joins: Joins, *, longest: int) -> Waits:
    """From the stationary chain, cut where no queue may grow over `longest`; the mean is by Little's law."""
    states = [state[::-1] for state in combinations_with_replacement(range(longest + 1), num_servers)]
    number = {state: n for n, state in enumerate(states)}
    rates: dict[tuple[int, int], float] = {}
    for here, lengths in enumerate(states):
        for after, rate in _moves(lengths, num_servers * rho, joins):
            there = number.get(after)
            if there is not None:
                rates[there, here] = rates.get((there, here), 0.0) + rate
                rates[here, here] = rates.get((here, here), 0.0) - rate
    rows, columns = zip(*(place for place in rates if place[0]), strict=True)
    kept = [rate for place, rate in rates.items() if place[0]]
    ones = np.arange(len(states))  # in place of the first balance equation: probabilities add up to 1
    matrix = coo_array(
        (
            np.concatenate([kept, np.ones(len(states))]),
            (np.concatenate([rows, np.zeros_like(ones)]), np.concatenate([columns, ones])),
        )
    )
    stationary = spsolve(matrix.tocsc(), np.eye(1, len(states))[0])
    at_the_edge = sum(stationary[number[state]] for state in states if state[0] == longest)
    assert at_the_edge < 1e-5, f"{at_the_edge:.2g} of the time a queue is at the cut"
    mean_in_system = float(stationary @ np.array([sum(state) for state in states]))
    share = np.array([sum(odds for place, odds in joins(state) if state[place]) for state in states])
    return Waits(mean_in_system / (num_servers * rho) - 1, float(stationary @ share))


def _moves(lengths: Lengths, arrival_rate: float, joins: Joins) -> Iterator[tuple[Lengths, float]]:
    for place, odds in joins(lengths):
        yield _changed(lengths, place, +1), arrival_rate * odds
    for place, length in enumerate(lengths):
        if length:
            yield _changed(lengths, place, -1), 1.0


def _changed(lengths: Lengths, place: int, by: int) -> Lengths:
    changed = list(lengths)
    changed[place] += by
    return tuple(sorted(changed, reverse=True))
