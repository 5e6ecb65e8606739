"""Closed loops whose arguments are unknown, replayed as their file says and with the arguments of published scripts.

    python -m benchmarks.closed_loops ../shared/measured

Each run has those of its version of vLLM, as far as the publisher's history tells (sim/measure/published.py). Nothing is fitted to these runs.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sim.measure.published import Server, completed, scripted, server_of
from sim.measure.runs import Run, read_runs
from sim.measure.validate import Errors, validate
from sim.report.tables import aligned

METRICS = ("ttft_mean", "tpot_mean")
ALL = Server("all", None, ""), ""


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """By model, weights, GPU and version: runs that start, and their errors, as the file says and with the arguments of scripts."""
    unknown = [run for run in read_runs(folder / "closed_loop.json") if not run.engine_args_known]
    with_script = [run for run in unknown if scripted(run)]
    plain, again = _by_group(unknown, unknown), _by_group(with_script, completed(with_script))
    for group, found in plain.items():
        server, version = group
        yield (*server, version, *_cells(found), *_cells(again.get(group, (None, {}))))


def _by_group(
    runs: Sequence[Run], as_served: Sequence[Run]
) -> dict[tuple[Server, str], tuple[int, dict[str, tuple[float, Errors]]]]:
    """How many were replayed, and for each metric the median of signed errors and their sizes; of all of them last."""
    found: dict[tuple[Server, str], list[dict[str, float]]] = {_group(run): [] for run in sorted(runs, key=_group)}
    found[ALL] = []
    for run, result in zip(runs, validate(as_served).results, strict=True):
        if result.whole is not None:
            found[_group(run)].append(result.whole.errors)
            found[ALL].append(result.whole.errors)
    return {group: (len(errors), _sizes(errors)) for group, errors in found.items()}


def _sizes(errors: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, Errors]]:
    sizes = {}
    for name in METRICS:
        of = np.array([one[name] for one in errors if name in one])
        if len(of):
            sizes[name] = float(np.median(of)), Errors(len(of), float(abs(of).mean()), float(np.median(abs(of))))
    return sizes


def _cells(found: tuple[int | None, Mapping[str, tuple[float, Errors]]]) -> Iterator[object]:
    count, sizes = found
    yield count
    for name in METRICS:
        yield f"{sizes[name][0]:+.0f} / {sizes[name][1].mape:.0f}" if name in sizes else None


def _group(run: Run) -> tuple[Server, str]:
    return server_of(run), run.engine_version.removeprefix("vllm ").partition("-")[0]


HEADER = ("model", "weights", "GPU", "vLLM", "runs", "TTFT", "TPOT", "with its script", "TTFT", "TPOT")

if __name__ == "__main__":
    print(aligned(HEADER, rows(Path(sys.argv[1]))))
