"""A fleet's pools and replicas and a trace's stages in tables, a row each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.report.tables import Table

Parts = Sequence[Mapping[str, Any]]
Columns = Mapping[str, tuple[str, float]]
"""The key of each column and what its figures are multiplied by, by label."""

REPLICAS: Columns = {
    "requests": ("requests", 1),
    "tokens out": ("total_output_tokens", 1),
    "hit %": ("prefix_cache_hit_rate", 100),
    "busy %": ("gpu_busy_fraction", 100),
    "mean queue": ("mean_num_waiting", 1),
    "max queue": ("max_num_waiting", 1),
    "mean KV %": ("mean_kv_cache_usage", 100),
}
POOLS: Columns = {
    "replicas": ("replicas", 1),
    "requests": ("arrived", 1),
    "tok/s out": ("output_throughput", 1),
    "mean TTFT ms": ("mean_ttft_ms", 1),
    "P99 TTFT ms": ("p99_ttft_ms", 1),
    "mean TPOT ms": ("mean_tpot_ms", 1),
    "hit %": ("prefix_cache_hit_rate", 100),
    "busy %": ("gpu_busy_fraction", 100),
}
STAGES: Columns = {
    "offered/s": ("request_rate", 1),
    "completed": ("completed", 1),
    "seconds": ("duration", 1),
    "req/s": ("request_throughput", 1),
    "tok/s out": ("output_throughput", 1),
    "mean TTFT ms": ("mean_ttft_ms", 1),
    "P99 TTFT ms": ("p99_ttft_ms", 1),
    "mean TPOT ms": ("mean_tpot_ms", 1),
}
LIMITED_STAGES: Columns = {"most in flight": ("max_concurrency", 1), **STAGES}
SLO_CLASSES: Columns = {
    "requests": ("arrived", 1),
    "completed": ("completed", 1),
    "goodput/s": ("request_goodput", 1),
    "within limits %": ("slo_attainment", 100),
}
MOST_ROWS = 16
"""Of a larger fleet the first and the last are shown."""


def parts_table(name: str, columns: Columns, parts: Parts) -> Table:
    """A row for each of the parts, which have a name or else a number."""
    rows = [
        (part.get(name, number), *(_scaled(part[key], scale) for key, scale in columns.values()))
        for number, part in enumerate(parts)
    ]
    return Table((name, *columns), rows)


def _scaled(value: float | None, scale: float) -> float | None:
    return value if value is None or scale == 1 else value * scale


def replica_rows(replicas: Parts) -> Iterator[str]:
    """The head, and a row a replica; `-` where there was nothing to measure."""
    half, columns = MOST_ROWS // 2, replica_columns(replicas)
    yield _head("replica", columns)
    for number, replica in enumerate(replicas):
        if len(replicas) <= MOST_ROWS or not half <= number < len(replicas) - half:
            yield _row(number, "replica", columns, replica)
        elif number == half:
            yield f"{'...':>7}"


def replica_columns(replicas: Parts) -> Columns:
    """With its server where one has several, and its address where nodes of servers have their own."""
    places = {name: (name, 1) for name in ("server", "address") if name in replicas[0]}
    return {**places, **REPLICAS}


def pool_rows(pools: Parts) -> Iterator[str]:
    """The head, and a row a pool, by name."""
    width = max(len("pool"), *(len(pool["pool"]) for pool in pools))
    yield _head(f"{'pool':<{width}}", POOLS)
    for pool in pools:
        yield f"{pool['pool']:<{width}}{_cells(POOLS, pool)}"


def stage_rows(stages: Parts) -> Iterator[str]:
    """The same for all stages."""
    columns = stage_columns(stages)
    yield _head("stage", columns)
    for stage in stages:
        yield _row(stage["stage"], "stage", columns, stage)


def stage_columns(stages: Parts) -> Columns:
    """With the limits of stages that have any."""
    return STAGES if all(stage.get("max_concurrency") is None for stage in stages) else LIMITED_STAGES


def _head(name: str, columns: Columns) -> str:
    return name + "".join(f"{label:>{len(label) + 2}}" for label in columns)


def _row(number: int, name: str, columns: Columns, part: Mapping[str, Any]) -> str:
    return f"{number:>{len(name)}}{_cells(columns, part)}"


def _cells(columns: Columns, part: Mapping[str, Any]) -> str:
    return "".join(_cell(label, part[key], scale) for label, (key, scale) in columns.items())


def _cell(label: str, value: float | None, scale: float) -> str:
    text = "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value * scale:,.1f}"
    return f"{text:>{len(label) + 2}}"
