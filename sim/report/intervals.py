"""The confidence in a forecast as text: its level, the intervals of the main figures, and whether it is at its limit."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TOLD = {
    "output_throughput": "tok/s",
    "p99_ttft_ms": "ms P99 TTFT",
    "p99_tpot_ms": "ms P99 TPOT",
    "p99_e2el_ms": "ms P99 E2EL",
}

SKETCHED = re.compile(r"(slo_.*_p[\d.]+|(median|p[\d.]+)_(ttft|tpot|itl|e2el))_ms")


def confidence_lines(confidence: Mapping[str, Any]) -> Iterator[str]:
    """The confidence in an answer, a line for each statement."""
    yield f"confidence: {confidence['text']}"
    found = confidence.get("intervals", {})
    told = [f"{between(found[name])} {unit}" for name, unit in TOLD.items() if name in found]
    if told:
        yield f"90 % intervals: {', '.join(told)}"
    if "at_limit" in confidence:
        yield confidence["at_limit"]["text"]


def sketched(summary: Mapping[str, Any], key: str) -> str:
    """How far off a percentile of a latency may be because it was read from a sketch; empty for any other figure."""
    error = summary.get("streamed", {}).get("percentile_error")
    return f"+-{error * 100:g} %" if error and SKETCHED.fullmatch(key) else ""


def between(interval: Sequence[float], scale: float = 1.0) -> str:
    """`12.3 to 14.5`, with enough decimals to distinguish the ends."""
    low, high = (end * scale for end in interval)
    decimals = 0 if high >= 1000 else 2 if high < 10 else 1
    return f"{low:,.{decimals}f} to {high:,.{decimals}f}"
