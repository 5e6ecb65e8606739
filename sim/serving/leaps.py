"""The end times of consecutive steps that run the same decodes.

Contexts grow by one token a step and a decode, and a step's time hardly bends over them: a parabola through three steps
gives those between to better than 1e-9, so that four evaluations replace hundreds; the fourth checks it.
"""

from bisect import bisect_left
from itertools import accumulate, repeat
from typing import NamedTuple

from sim.steptime.protocol import DecodeCurve

LONGEST_STRETCH = 256
FEW_STEPS = 5
"""Fewer steps than this are evaluated one by one."""
GROWTH = 4
"""A parabola spans at most 1 / GROWTH of the mean context; its error was seen to stay below 1e-9 there."""
TOLERANCE = 1e-10
"""Relative error at the step that checks a parabola; beyond, as where a curve has a knee, steps are evaluated singly."""


class Parabola(NamedTuple):
    """How durations of consecutive steps go on from the first: by this difference, which itself grows by `bend_s`."""

    difference_s: float
    bend_s: float


def decode_step_ends(
    curve: DecodeCurve, num_decodes: int, context_tokens: int, max_steps: int, start_s: float, until_s: float
) -> list[float]:
    """Ends of at most `max_steps` steps from `start_s` on, the last the first that ends at or after `until_s`.

    `context_tokens` is the sum of contexts after the first step; every step adds one token a decode.
    """
    ends: list[float] = []
    end_s, left = start_s, max_steps
    while True:
        duration_s = curve.at(context_tokens)
        stretch = min(left, LONGEST_STRETCH, context_tokens // (GROWTH * num_decodes))
        if end_s + stretch * duration_s > until_s:
            stretch = int((until_s - end_s) / duration_s) + 1
        parabola = _fit(curve, num_decodes, context_tokens, duration_s, stretch) if stretch >= FEW_STEPS else None
        if parabola is None:
            stretch = 1
            ends.append(end_s + duration_s)
        else:
            differences = accumulate(repeat(parabola.bend_s, stretch - 2), initial=parabola.difference_s)
            durations = accumulate(differences, initial=duration_s)
            ends += list(accumulate(durations, initial=end_s))[1:]
        left -= stretch
        end_s = ends[-1]
        if end_s >= until_s:
            return ends[: bisect_left(ends, until_s) + 1]
        if not left:
            return ends
        context_tokens += stretch * num_decodes


def _fit(curve: DecodeCurve, num_decodes: int, context_tokens: int, first_s: float, num_steps: int) -> Parabola | None:
    """The parabola over so many steps, or None where the curve is not one."""
    half = (num_steps - 1) // 2
    quarter = half // 2
    middle_s = curve.at(context_tokens + half * num_decodes)
    last_s = curve.at(context_tokens + 2 * half * num_decodes)
    curvature = (first_s - 2 * middle_s + last_s) / (2 * half * half)
    slope = (middle_s - first_s) / half - curvature * half
    checked_s = curve.at(context_tokens + quarter * num_decodes)
    if abs(first_s + quarter * (slope + quarter * curvature) - checked_s) > TOLERANCE * checked_s:
        return None
    return Parabola(slope + curvature, 2 * curvature)
