"""Routers side by side: one fleet and one load, replayed behind each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.api import Result, simulate
from sim.cluster.fleet_plan import RouterLike
from sim.errors import ConfigError
from sim.report.comparison import comparison_rows, comparison_text
from sim.report.run_title import router_text

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Comparison:
    """The result behind each router, by its name and options, in the order asked for; printing it gives a table."""

    results: Mapping[str, Result]

    @property
    def summary(self) -> dict[str, Any]:
        """What `servecast compare --json` prints: the whole summary of each run."""
        return {"routers": [{"router": name, **result.summary} for name, result in self.results.items()]}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The columns of the table, by router."""
        return list(comparison_rows(self.summary["routers"]))

    def write(self, folder: str | Path) -> None:
        """summary.json, routers.csv and routers.png, all or none. Raises ConfigError where the folder holds anything else."""
        from sim.report.comparison_folder import write_comparison

        write_comparison(Path(folder), self.summary, self.rows)

    def __str__(self) -> str:
        return comparison_text(self.summary["routers"])


def compare(
    *deployed: Any, routers: Sequence[RouterLike], progress: Progress | None = None, **arguments: Any
) -> Comparison:
    """Replay the same requests behind each of `routers`; all else, given by place or name, is that of `sim.simulate`.

    `progress` is called with (requests done, those of all runs). Raises ConfigError for fewer than two replicas or routers.
    """
    names = list(map(router_text, routers))
    if len(set(names)) < max(2, len(names)):
        raise ConfigError(f"compare needs two different routers or more, got {', '.join(names) or 'none'}.")
    results = {}
    for number, (name, router) in enumerate(zip(names, routers, strict=True)):
        results[name] = simulate(*deployed, router=router, progress=_of_all(progress, number, len(names)), **arguments)
        if results[name].fleet.most_replicas < 2:
            raise ConfigError("a single replica needs no router; give --replicas or --fleet.")
    return Comparison(results)


def _of_all(progress: Progress | None, number: int, count: int) -> Progress | None:
    """The progress of one run as that of all."""
    return progress and (lambda done, all_of_one: progress(number * all_of_one + done, count * all_of_one))
