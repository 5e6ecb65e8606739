"""Finished runs side by side, each figure against the first run's, and what is asserted of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.measure.assertions import Assertion, Judged, judge
from sim.measure.differences import Difference, difference
from sim.measure.finished import Finished, read_finished
from sim.report.page.comparison import results_page
from sim.report.side_by_side import side_by_side_table, write_side_by_side


@dataclass(frozen=True)
class ComparedResults:
    """Runs in the order given, the baseline first where there is one; printing them gives a table.

    `judged` has each assertion for each run but the baseline.
    """

    runs: tuple[Finished, ...]
    judged: tuple[Judged, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row a figure: its `metric`, each run's value by name and, of all but the first, its difference from the first."""
        return [_row(metric, self.runs) for metric in _metrics(self.runs)]

    @property
    def failed(self) -> tuple[Judged, ...]:
        """The assertions that do not hold."""
        return tuple(one for one in self.judged if not one.holds)

    @property
    def summary(self) -> dict[str, Any]:
        """What `servecast compare RESULT RESULT --json` prints."""
        return {
            "results": [{"name": run.name, "kind": run.kind} for run in self.runs],
            "metrics": self.rows,
            "assertions": [
                {
                    "run": one.run,
                    "assert": one.assertion.text,
                    "value": one.value,
                    "bound": one.bound,
                    "holds": one.holds,
                }
                for one in self.judged
            ],
        }

    def write(self, folder: str | Path) -> None:
        """summary.json, results.csv, report.html and distributions.png, all or none. Raises ConfigError where the folder holds anything else."""
        samples_ms = {run.name: run.samples_ms for run in self.runs}
        page = results_page(self.summary, samples_ms)
        write_side_by_side(Path(folder), self.summary, self.rows, samples_ms, page)

    def __str__(self) -> str:
        return side_by_side_table([run.name for run in self.runs], self.rows)


def compare_results(
    results: Sequence[str | Path], *, baseline: str | Path | None = None, asserts: Sequence[str] = ()
) -> ComparedResults:
    """Read runs, simulated (a folder of `--out`, its summary.json) or measured (JSON of `vllm bench serve`), and compare them.

    `asserts` must hold of each of `results`: `p99_ttft_ms<500`, in the figure's own unit or a given one (`p99_ttft_ms<0.5s`), or relative
    to the `baseline`: `p99_ttft_ms<=1.05x`. Raises SimError for what is no result, for an assertion that says nothing of them, and for
    fewer than two runs without one.
    """
    found = [read_finished(path) for path in results]
    base = None if baseline is None else read_finished(baseline)
    runs = _by_name([*([base] if base else []), *found])
    if len(runs) < (1 if asserts else 2):
        raise ConfigError(f"compare needs two results or more, or one and what to assert of it, got {len(runs)}.")
    metrics = list(_metrics(runs))
    asserted = [Assertion.parse(text, metrics) for text in asserts]
    judged = tuple(judge(one, run, base) for run in runs[-len(found) :] for one in asserted) if found else ()
    return ComparedResults(runs, judged)


def _by_name(runs: Sequence[Finished]) -> tuple[Finished, ...]:
    """Names that are there already are numbered."""
    names: list[str] = []
    for run in runs:
        times = sum(1 for name in names if name.partition(" #")[0] == run.name)
        names.append(f"{run.name} #{times + 1}" if times else run.name)
    return tuple(run._replace(name=name) for run, name in zip(runs, names, strict=True))


def _metrics(runs: Sequence[Finished]) -> Iterator[str]:
    """Those that any run has a number for, in the order in which they are met."""
    yield from dict.fromkeys(name for run in runs for name, value in run.figures.items() if value is not None)


def _row(metric: str, runs: Sequence[Finished]) -> dict[str, Any]:
    base, *others = runs
    differences: Mapping[str, Difference | None] = {run.name: difference(base, run, metric) for run in others}
    return {
        "metric": metric,
        "values": {run.name: run.figures.get(metric) for run in runs},
        "intervals": {run.name: list(run.intervals[metric]) for run in runs if metric in run.intervals},
        "differences": {name: found and found._asdict() for name, found in differences.items()},
    }
