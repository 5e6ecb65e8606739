"""Runs of one load in a table, a row each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from sim.report.run_title import run_title
from sim.report.tables import aligned, terminal_width

Compared = Literal["router", "choice"]
COLUMNS = {
    "req/s": ("request_throughput", 1),
    "tok/s out": ("output_throughput", 1),
    "mean TTFT ms": ("mean_ttft_ms", 1),
    "P99 TTFT ms": ("p99_ttft_ms", 1),
    "mean TPOT ms": ("mean_tpot_ms", 1),
    "P99 ITL ms": ("p99_itl_ms", 1),
    "P99 E2EL ms": ("p99_e2el_ms", 1),
    "hit %": ("prefix_cache_hit_rate", 100),
    "within limits %": ("slo_attainment", 100),
    "KV %": ("max_kv_cache_usage", 100),
    "preempted": ("num_preemptions", 1),
}
"""The key of each column and what its figures are multiplied by; one that no run has is left out."""
LEFT_OUT: Mapping[Compared, Sequence[str]] = {"router": ("P99 ITL ms", "KV %", "preempted"), "choice": ("req/s",)}
"""What says little about either, so that the table is no wider than a terminal."""
MOST = "most / mean"
"""Output tokens of the replica that generated most, as a multiple of the mean: 1 is an even spread."""


def comparison_rows(compared: Compared, summaries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each run's columns, None where there was nothing to measure."""
    columns = {label: column for label, column in COLUMNS.items() if label not in LEFT_OUT[compared]}
    for summary in summaries:
        figures = {label: _scaled(summary[key], scale) for label, (key, scale) in columns.items() if key in summary}
        spread = {MOST: _most_over_mean(summary["replicas"])} if compared == "router" else {}
        yield {compared: summary[compared], **figures, **spread}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _most_over_mean(replicas: Sequence[Mapping[str, Any]]) -> float | None:
    tokens = [replica["total_output_tokens"] for replica in replicas]
    return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else None


def comparison_text(compared: Compared, summaries: Sequence[Mapping[str, Any]], refused: Mapping[str, str]) -> str:
    """What all runs have in common, a row for each, and why others did not run."""
    rows = list(comparison_rows(compared, summaries))
    each = {"fleet": {**summaries[0]["fleet"], "router": "each router"}} if compared == "router" else {}
    title = run_title({**summaries[0], **each}, terminal_width())
    reasons = "".join(f"\n{name} did not run: {reason}" for name, reason in refused.items())
    return f"{title}\n{aligned(list(rows[0]), [list(row.values()) for row in rows])}{reasons}"
