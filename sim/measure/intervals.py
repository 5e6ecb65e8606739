"""An interval for every figure of a replay, from replays with the shortest and the longest step times of the band."""

from collections.abc import Mapping
from math import exp, expm1, hypot, log
from typing import Any, NamedTuple

from sim.measure.confidence import Bands

Intervals = dict[str, list[float]]


class Ends(NamedTuple):
    """Factors on step times at the low and the high end of their band."""

    low: float
    high: float


class Beyond(NamedTuple):
    """How far a figure may lie below and above the range that step times explain, as logarithms of factors."""

    down: float
    up: float


def ends(bands: Bands) -> Ends:
    return Ends(exp(-bands.step), exp(bands.step))


def intervals(
    point: Mapping[str, Any], low: Mapping[str, Any], high: Mapping[str, Any], bands: Bands, *, late_ms: float = 0.0
) -> Intervals:
    """[low, high] of each number that all three replays have, the middle one's always inside.

    To what step times do, errors that they do not explain are added as independent ones: of the time to first token, which
    is also in each request's end, and, at the high end alone, of the slowest requests. `late_ms` is by how much a client sees tokens later than
    `point` has it. Names are those of a summary (`p99_ttft_ms`) or of measured runs (`ttft_p99`).
    """
    found: Intervals = {}
    for name, value in point.items():
        replayed = [value, low.get(name), high.get(name)]
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in replayed):
            parts = name.split("_")
            ends_of = _widened(value, min(replayed), max(replayed), _beyond(parts, point, bands))
            found[name] = [
                ends_of[0],
                ends_of[1] + (late_ms if {"ttft", "e2el"} & set(parts) and "std" not in parts else 0.0),
            ]
    return found


def _beyond(parts: list[str], point: Mapping[str, Any], bands: Bands) -> Beyond:
    """Effects that are not simulated delay the slowest requests; they make none faster."""
    either_way = _either_way(parts, point, bands)
    slow = bands.p99 if "p99" in parts else bands.p95 if "p95" in parts else 0.0
    return Beyond(either_way, hypot(either_way, slow))


def _either_way(parts: list[str], point: Mapping[str, Any], bands: Bands) -> float:
    if "blocks" in parts:
        return bands.blocks
    if "ttft" in parts:
        return bands.ttft
    if "e2el" in parts:
        end = point["_".join(parts)]
        first = point.get("_".join("ttft" if part == "e2el" else part for part in parts)) or 0.0
        return expm1(bands.ttft) * first / end if end else 0.0
    return 0.0


def _widened(value: float, low: float, high: float, beyond: Beyond) -> tuple[float, float]:
    """Both ends farther from the value; figures of 0 or less stay, for they have no logarithm."""
    if low <= 0:
        return low, high
    return (
        value * exp(-hypot(log(value / low), beyond.down)) if beyond.down else low,
        value * exp(hypot(log(high / value), beyond.up)) if beyond.up else high,
    )
