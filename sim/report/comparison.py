"""Runs of one load in a table, a row each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.report.run_title import run_title
from sim.report.tables import aligned, terminal_width

COLUMNS = {
    "req/s": ("request_throughput", 1),
    "tok/s out": ("output_throughput", 1),
    "mean TTFT ms": ("mean_ttft_ms", 1),
    "P99 TTFT ms": ("p99_ttft_ms", 1),
    "mean TPOT ms": ("mean_tpot_ms", 1),
    "P99 E2EL ms": ("p99_e2el_ms", 1),
    "hit %": ("prefix_cache_hit_rate", 100),
    "within limits %": ("slo_attainment", 100),
}
"""The key of each column and what its figures are multiplied by; one that no run has is left out."""
MOST = "most / mean"
"""Output tokens of the replica that generated most, as a multiple of the mean: 1 is an even spread."""


def comparison_rows(summaries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each run's columns, None where there was nothing to measure."""
    for summary in summaries:
        figures = {label: _scaled(summary[key], scale) for label, (key, scale) in COLUMNS.items() if key in summary}
        yield {"router": summary["router"], **figures, MOST: _most_over_mean(summary["replicas"])}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _most_over_mean(replicas: Sequence[Mapping[str, Any]]) -> float | None:
    tokens = [replica["total_output_tokens"] for replica in replicas]
    return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else None


def comparison_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What all runs have in common, and a row for each."""
    rows = list(comparison_rows(summaries))
    title = run_title({**summaries[0], "fleet": {**summaries[0]["fleet"], "router": "each router"}}, terminal_width())
    return f"{title}\n{aligned(list(rows[0]), [list(row.values()) for row in rows])}"
