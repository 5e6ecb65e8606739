"""What `sim.optimize` and `sim.capacity` return."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError, nearest
from sim.search.space import REPLICAS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.search.bench_load import BenchLoad


@dataclass(frozen=True)
class Optimization:
    """`summary` is the JSON object of `servecast optimize`: best first of all, then the evidence. `load.write` writes the
    dataset that the line in `best["bench_command"]` reads.
    """

    summary: dict[str, Any]
    load: "BenchLoad"

    @property
    def best(self) -> dict[str, Any]:
        """The winner: `engine`, `metrics`, `score`, `tied_with`, `serve_command` and more."""
        best: dict[str, Any] = self.summary["best"]
        return best

    @cached_property
    def candidates(self) -> "pd.DataFrame":
        """One row a candidate: knobs, feasibility, score and the figures of its longest replay."""
        return _frame(map(candidate_row, self.summary["candidates"]))

    @cached_property
    def pareto(self) -> "pd.DataFrame":
        """Those candidates that none beats in every goal."""
        return _frame(map(candidate_row, self.summary["pareto"]))

    @cached_property
    def sensitivity(self) -> "pd.DataFrame":
        """One row a knob and value, the winner's others held."""
        return _frame(sensitivity_rows(self.summary["sensitivity"]))

    def plot(self, knob: str | None = None) -> "Figure":
        """A matplotlib Figure: all candidates, or what one knob of `sensitivity` does. Raises ConfigError for another."""
        from sim.report.search_plots import pareto_figure, sensitivity_figure

        if knob is None:
            return pareto_figure(self.summary)
        if knob not in self.summary["sensitivity"]:
            known = tuple(self.summary["sensitivity"])
            raise ConfigError(f"{knob!r} was not varied; there are {', '.join(known) or 'none'}.{nearest(knob, known)}")
        return sensitivity_figure(self.summary, knob)

    def _repr_html_(self) -> str:
        from sim.report.html import optimization_html

        return optimization_html(self.summary)


@dataclass(frozen=True)
class Capacity:
    """`summary` is the JSON object of `servecast capacity`. `load.write` writes the dataset that the line in
    `bench_command` reads; None where there is no such line.
    """

    summary: dict[str, Any]
    load: "BenchLoad | None"

    @cached_property
    def curve(self) -> "pd.DataFrame":
        """One row a request rate, ascending."""
        return _frame(self.summary["curve"])

    def plot(self) -> "Figure":
        """A matplotlib Figure: each limited percentile against the request rate."""
        from sim.report.search_plots import capacity_figure

        return capacity_figure(self.summary)

    def _repr_html_(self) -> str:
        from sim.report.html import capacity_html

        return capacity_html(self.summary)


def candidate_row(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate as one flat row."""
    facts = {name: candidate[name] for name in (REPLICAS, "num_gpus", "feasible", "reason", "share", "score")}
    return {**_plain(candidate["engine"]), **facts, "slo_violation": candidate["slo_violation"], **_figures(candidate)}


def sensitivity_rows(sensitivity: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"knob": knob, **_plain({"value": point["value"]}), "is_winner": point["is_winner"], "reason": point["reason"]}
        | {name: point[name] for name in ("share", "score", "slo_violation")}
        | _figures(point)
        for knob, points in sensitivity.items()
        for point in points
    ]


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that are numbers, without those that have a column already."""
    return {name: value for name, value in row["metrics"].items() if name not in {REPLICAS, "num_gpus"}}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as text, so that each value is one cell."""
    return {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value for name, value in values.items()
    }


def _frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))
