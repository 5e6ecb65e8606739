"""How far measured runs and their replay are apart, as text, as Markdown and as one scatter plot."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.report.intervals import between
from sim.report.plots import BLUE, GREEN, INK, ORANGE, VIOLET, panels, save, say_nothing
from sim.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS_TITLE_WIDTH = 70
METRICS = ("ttft_mean", "tpot_mean", "e2el_mean", "e2el_p99")
ALSO_SUMMED = ("output_throughput", "num_gpu_blocks")
SHOWN = (
    *(f"{name}_{what}" for name in ("ttft", "tpot", "e2el") for what in ("mean", "p50", "p99")),
    *ALSO_SUMMED,
)
"""Figures of a run that are printed one by one, in this order."""
MOST_SHOWN = 4  # runs; of more there are errors alone
# MAPE / median APE in % on 38 runs of shared measurements, the whole run, out of sample: inference-sim's
# sim-to-real-accuracy-validation. None where the tool does not predict it.
PEERS: Mapping[str, Mapping[str, tuple[float, float] | None]] = {
    "BLIS trained-physics": {
        "ttft_mean": (19.5, 18.4),
        "tpot_mean": (9.8, 6.5),
        "e2el_mean": (9.1, 6.8),
        "e2el_p99": (11.0, 9.1),
    },
    "BLIS roofline": {
        "ttft_mean": (675, 650),
        "tpot_mean": (42.8, 44.4),
        "e2el_mean": (35, 33.4),
        "e2el_p99": (33, 31.6),
    },
    "AIConfigurator": {"ttft_mean": (801, 662), "tpot_mean": (15.4, 13.2), "e2el_mean": (22.2, 21.5), "e2el_p99": None},
    "LLMServingSim 1.1": {
        "ttft_mean": (76, 72),
        "tpot_mean": (26.4, 19.9),
        "e2el_mean": (24.5, 18.5),
        "e2el_p99": (25.7, 22.9),
    },
    "llm-optimizer": {"ttft_mean": (1325, 662), "tpot_mean": (67.1, 60.6), "e2el_mean": (58.9, 51.7), "e2el_p99": None},
}
Row = tuple[object, ...]


def summary_rows(validation: Mapping[str, Any]) -> Iterator[Row]:
    """Metric, number of runs, MAPE and median APE in %."""
    for metric, errors in validation["summary"].items():
        yield metric, errors["n"], errors["mape"], errors["median_ape"]


def group_rows(validation: Mapping[str, Any], metrics: Sequence[str] = METRICS) -> Iterator[Row]:
    """For each group: its runs and the median APE of each metric."""
    for grouping, groups in validation["summary_by"].items():
        for name, summary in groups.items():
            count = max((errors["n"] for errors in summary.values()), default=0)
            medians = [summary[metric]["median_ape"] if metric in summary else None for metric in metrics]
            yield grouping, name, count, *medians


def peer_rows(validation: Mapping[str, Any]) -> Iterator[Row]:
    """Median APE and MAPE of other simulators beside these."""
    own = {
        metric: (errors["mape"], errors["median_ape"])
        for metric, errors in validation["summary"].items()
        if metric in METRICS
    }
    for name, by_metric in {"Servecast, on these runs": own, **PEERS}.items():
        yield name, *(_pair(by_metric.get(metric)) for metric in METRICS)


def figure_rows(validation: Mapping[str, Any]) -> Iterator[Row]:
    """Each figure of each run that was replayed: measured, predicted, its interval, signed error in %; latencies in ms."""
    for run in validation["runs"]:
        for name in SHOWN:
            if name in run.get("errors", ()):
                interval = between(run["intervals"][name]) if "intervals" in run else "-"
                error = _signed(run["errors"][name])
                yield run["id"], name, run["measured"][name], run["predicted"][name], interval, error


def run_rows(validation: Mapping[str, Any], metrics: Sequence[str] = METRICS) -> Iterator[Row]:
    """Each run that was replayed, with its signed errors in %."""
    for run in validation["runs"]:
        if "errors" in run:
            yield (
                run["id"],
                run["model"].rpartition("/")[2],
                run["gpu"],
                *(_signed(run["errors"].get(m)) for m in metrics),
            )


def unreplayed(validation: Mapping[str, Any]) -> list[str]:
    """A sentence for each run that could not be replayed, runs of the same reason together."""
    ids: dict[str, list[str]] = {}
    for run in validation["runs"]:
        if "reason" in run:
            ids.setdefault(run["reason"] or "nothing of the whole run was measured.", []).append(run["id"])
    return [f"{len(named)} not replayed ({_few(named)}): {reason}" for reason, named in ids.items()]


def console_report(validation: Mapping[str, Any]) -> str:
    """Errors by metric, group and run, with other simulators beside."""
    return "\n\n".join(map(str, report_blocks(validation)))


def report_blocks(validation: Mapping[str, Any]) -> list[str | Table]:
    """The same as texts and tables, one after the other."""
    metrics = [metric for metric in METRICS if metric in validation["summary"]]
    overall = [row for row in summary_rows(validation) if row[0] in {*metrics, *ALSO_SUMMED}]
    is_like_peers = "open_loop" in validation["summary_by"]["workload"]
    figures = list(figure_rows(validation)) if len(validation["runs"]) <= MOST_SHOWN else []
    parts: list[str | Table] = [
        *(
            [_table(("run", "ms, tok/s, blocks", "measured", "predicted", "90 % interval", "error %"), figures)]
            if figures
            else []
        ),
        _table(("metric", "runs", "MAPE %", "median APE %"), overall),
        _table(("median APE % by", "", "runs", *metrics), group_rows(validation, metrics)),
        *([_table(("MAPE / median APE %", *METRICS), peer_rows(validation))] if is_like_peers else []),
        _table(("run", "model", "GPU", *(f"{metric} %" for metric in metrics)), run_rows(validation, metrics)),
    ]
    return [*parts, *unreplayed(validation)]


def _table(header: Sequence[str], rows: Iterable[Row]) -> Table:
    return Table(header, list(rows))


def markdown_table(header: Sequence[str], rows: Iterable[Row]) -> str:
    """The same rows for a page."""
    lines = [header, ["---"] * len(header), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def scatter_plot(path: Path, validation: Mapping[str, Any], *, title: str | None = None) -> None:
    """`scatter_figure` as a PNG."""
    save(scatter_figure(validation, title=title), path)


def scatter_figure(validation: Mapping[str, Any], *, title: str | None = None) -> "Figure":
    """Measured against predicted, each run a point for each latency, on logarithmic axes with +-10 % marked."""
    with panels(title or runs_title(validation), rows=1, columns=1, height_in=6.0, width_in=6.4) as (figure, (axes,)):
        ends = [float("inf"), 0.0]
        for metric, colour in zip(METRICS, (BLUE, ORANGE, GREEN, VIOLET), strict=True):
            points = [
                (run["measured"][metric], run["predicted"][metric])
                for run in validation["runs"]
                if metric in run.get("errors", ())
            ]
            if points:
                measured, predicted = zip(*points, strict=True)
                axes.scatter(measured, predicted, s=14, color=colour, alpha=0.7, label=metric)
                ends = [min(ends[0], *measured, *predicted), max(ends[1], *measured, *predicted)]
        if ends[1]:
            axes.plot(ends, ends, color=INK, linewidth=0.8)
            axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color=INK, alpha=0.08)
            axes.legend()
            axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms")
        else:
            say_nothing(axes, "no run was replayed")
    return figure


def runs_title(validation: Mapping[str, Any]) -> str:
    """How many runs, of which models on which GPUs."""
    models, gpus = ({run[name].rpartition("/")[2]: None for run in validation["runs"]} for name in ("model", "gpu"))
    num_runs = len(validation["runs"])
    words = f"{num_runs:,} measured run{'s' * (num_runs != 1)} of {_few(list(models))} on {_few(list(gpus))}"
    return textwrap.fill(words, RUNS_TITLE_WIDTH)


def _pair(errors: tuple[float, float] | None) -> str:
    return "-" if errors is None else f"{errors[0]:.1f} / {errors[1]:.1f}"


def _signed(error: float | None) -> str:
    return "-" if error is None else f"{error:+.1f}"


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
