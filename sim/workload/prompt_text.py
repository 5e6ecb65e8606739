"""Prompts as text: words that are one token each, equal where the tokens of a trace are equal."""

import numpy as np

from sim.workload.trace import Segment

COMMON = (
    "the of and to in is that for it as was with be by on not he his from at which but have an had they you were their one all we "
    "can her has there been if more when will would who so no out up about into then some these two may other its only new "
    "time like"
)
"""English words that are, with the space before them, one token each in the byte-pair vocabularies in use."""
WORDS = np.array(COMMON.split())

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def prompt_text(prompt: tuple[Segment, ...]) -> str:
    """One word a token. Word k of a content depends on (content id, k) alone; blocks of different contents differ."""
    contents = np.repeat(
        np.array([content for content, _ in prompt], dtype=np.uint64), [tokens for _, tokens in prompt]
    )
    places = np.concatenate([np.arange(tokens, dtype=np.uint64) for _, tokens in prompt])
    return " ".join(WORDS[_mixed(_mixed(contents) ^ places) % np.uint64(len(WORDS))].tolist())


def _mixed(values: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """SplitMix64 (Steele, Lea and Flood, 2014): each bit of the result depends on all bits of the value."""
    mixed = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    return mixed ^ (mixed >> np.uint64(31))
