"""A fleet's replicas in a table, a row each."""

from collections.abc import Iterator, Mapping
from typing import Any

COLUMNS = {
    "requests": ("requests", 1),
    "tokens out": ("total_output_tokens", 1),
    "hit %": ("prefix_cache_hit_rate", 100),
    "busy %": ("gpu_busy_fraction", 100),
    "mean queue": ("mean_num_waiting", 1),
    "max queue": ("max_num_waiting", 1),
    "mean KV %": ("mean_kv_cache_usage", 100),
}
MOST_ROWS = 16
"""Of a larger fleet the first and the last are shown."""


def replica_rows(replicas: list[Mapping[str, Any]]) -> Iterator[str]:
    """The head, and a row a replica; `-` where there was nothing to measure."""
    yield f"{'replica':>7}" + "".join(f"{label:>{len(label) + 2}}" for label in COLUMNS)
    half = MOST_ROWS // 2
    for number, replica in enumerate(replicas):
        if len(replicas) <= MOST_ROWS or not half <= number < len(replicas) - half:
            yield f"{number:>7}" + "".join(_cell(label, replica) for label in COLUMNS)
        elif number == half:
            yield f"{'...':>7}"


def _cell(label: str, replica: Mapping[str, Any]) -> str:
    key, scale = COLUMNS[label]
    value = replica[key]
    text = "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value * scale:.1f}"
    return f"{text:>{len(label) + 2}}"
