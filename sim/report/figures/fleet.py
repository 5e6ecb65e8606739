"""Each replica of a fleet over time, as rows of colours."""

from sim.engine.records import Floats, Ints
from sim.metrics.over_time import ReplicasOverTime
from sim.report.figures.over_time import TIME
from sim.report.figures.theme import Figure, axis, figure, numbers

ROW_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 18, 200, 560


def fleet_figures(found: ReplicasOverTime) -> dict[str, Figure]:
    """By name: the running and the waiting requests of each replica, and its KV cache."""
    return {
        "replica_running": _rows(found, "Running requests by replica", found.num_running),
        "replica_waiting": _rows(found, "Waiting requests by replica", found.num_waiting),
        "replica_kv_cache": _rows(found, "KV cache usage by replica (%)", 100 * found.kv_cache_usage),
    }


def _rows(found: ReplicasOverTime, title: str, values: Floats | Ints) -> Figure:
    """Dark is little and bright is much; where a replica holds no GPU there is nothing."""
    heat = {
        "type": "heatmap",
        "x": numbers(found.time_s),
        "y": [f"replica {number}" for number in range(len(values))],
        "z": [[value if is_there else None for value, is_there in zip(numbers(row), ready.tolist(), strict=True)]
              for row, ready in zip(values, found.is_ready, strict=True)],
        "colorscale": "Cividis",
        "zmin": 0,
        "zmax": max(1.0, float(values.max())),
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hovertemplate": "%{y} at %{x:,.4~g} s: %{z:,.4~g}<extra></extra>",
    }  # fmt: skip
    height = min(MOST_HEIGHT, max(LEAST_HEIGHT, 90 + ROW_HEIGHT * len(values)))
    y = axis("", autorange="reversed", type="category", showgrid=False)
    return figure([heat], title, x=axis(TIME), y=y, height=height, hovermode="closest")
