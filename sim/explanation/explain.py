"""A run explained: what limited it, why its slowest requests are slow, and what would help, checked by trying."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from sim.api import Result
from sim.explanation.from_folder import simulated_again
from sim.explanation.paragraph import NAMES, paragraph
from sim.explanation.parts import PARTS
from sim.explanation.passes import watch
from sim.explanation.replica_time import replica_times
from sim.explanation.rules import worth_a_try
from sim.explanation.story import Story, story
from sim.explanation.tail import Slowest, looked_at, slowest_rows, tail
from sim.explanation.trials import JUDGED, Progress, Trial, try_out
from sim.report.run_title import run_title
from sim.report.side_by_side import change_text
from sim.report.tables import Table, aligned, terminal_width

IDLE = "Tried, and no better: "
LABELS = {
    "output_throughput": "tok/s out",
    "request_goodput": "goodput",
    "p99_ttft_ms": "P99 TTFT",
    "p99_tpot_ms": "P99 TPOT",
    "p99_e2el_ms": "P99 E2EL",
}


@dataclass(frozen=True)
class Explanation:
    """`text` is the run in a paragraph, `slowest` the parts of the slowest 1 % by latency, `trials` what was tried, best first."""

    title: str
    text: str
    slowest: Mapping[str, Slowest]
    trials: tuple[Trial, ...]

    def to_json(self) -> dict[str, Any]:
        """What `servecast explain --json` prints."""
        return {
            "text": self.text,
            "slowest": {name: one._asdict() | {"parts_ms": dict(one.parts_ms)} for name, one in self.slowest.items()},
            "trials": [
                {
                    "change": trial.change.name,
                    "gpus": trial.change.gpus,
                    "helps": trial.helps,
                    "differences": {name: one._asdict() for name, one in trial.differences.items()},
                    "refused": trial.refused,
                }
                for trial in self.trials
            ],
        }

    def __str__(self) -> str:
        text = textwrap.fill(self.text, terminal_width())
        helpful = f"{self.helpful}\n~ within noise" if self.helpful else ""
        others = (textwrap.fill(one, terminal_width()) if one.startswith(IDLE) else one for one in self.others())
        return "\n\n".join(part for part in (self.title, text, self._slowest, helpful, *others) if part)

    @property
    def _slowest(self) -> str:
        if not self.slowest:
            return ""
        columns = [(name, one) for name, one in self.slowest.items()]
        header = ["the slowest 1 %, in the mean", *(cell for name, _ in columns for cell in (f"{NAMES[name]} ms", "%"))]
        rows = [
            [text, *(cell for _, one in columns for cell in _share(one, part))]
            for part, text in PARTS.items()
            if any(part in one.parts_ms for _, one in columns)
        ]
        whole = ["together", *(cell for _, one in columns for cell in (one.mean_ms, 100.0))]
        return aligned(header, [*rows, whole])

    @property
    def helpful(self) -> Table | None:
        """What helped, and by how much."""
        helpful = [trial for trial in self.trials if trial.helps]
        names = [name for name in JUDGED if any(name in trial.differences for trial in helpful)]
        rows = [[_called(trial), *_moved(trial, names)] for trial in helpful]
        return Table(["what helps, in %", *(LABELS[name] for name in names)], rows) if rows else None

    def others(self) -> Iterator[str]:
        """All that was tried and did not help, by name."""
        idle = [trial.change.name for trial in self.trials if not trial.helps and trial.refused is None]
        if idle:
            yield f"{IDLE}{', '.join(idle)}."
        yield from (
            f"{trial.change.name} cannot be simulated: {trial.refused}" for trial in self.trials if trial.refused
        )


def _share(one: Slowest, part: str) -> tuple[float | None, float | None]:
    value = one.parts_ms.get(part)
    return (None, None) if value is None else (value, 100 * value / one.mean_ms)


def _called(trial: Trial) -> str:
    return trial.change.name + (f" ({trial.change.gpus} x the GPUs)" if trial.change.gpus > 1 else "")


def _moved(trial: Trial, names: Sequence[str]) -> list[str]:
    found = [trial.differences.get(name) for name in names]
    return [change_text(one and one._asdict()) for one in found]


@overload
def explain(
    run: Result | str | Path, request: None = None, *, tries: bool = True, progress: Progress | None = None
) -> Explanation: ...
@overload
def explain(run: Result | str | Path, request: str) -> Story: ...
def explain(
    run: Result | str | Path, request: str | None = None, *, tries: bool = True, progress: Progress | None = None
) -> Explanation | Story:
    """Explain a run, a result or a folder of `--out`, or the life of one `request` of it, by name.

    What happened to its slowest requests is seen by simulating it again; unless `tries` is False each change that might help is simulated
    as well, `progress` being called with (done, all) of these. Raises SimError for a folder whose run cannot be simulated again,
    and for a request that the trace has not.
    """
    result = run if isinstance(run, Result) else simulated_again(run)
    replicas = replica_times(result)
    if request is not None:
        return story(result, request, replicas)
    slowest = slowest_rows(result.seen.merged.requests)
    rows = sorted({row for _, some in slowest.values() for row in looked_at(some).tolist()})
    found = tail(result, slowest, watch(result, rows), replicas) if rows else {}
    trials = try_out(result, worth_a_try(result), progress) if tries else []
    title = run_title(result.summary, terminal_width())
    return Explanation(title, paragraph(result, replicas, found), found, tuple(trials))
