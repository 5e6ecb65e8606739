"""Runs side by side: one load, replayed behind several routers, or with engine arguments varied one at a time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sim.api import Result, simulate
from sim.cluster.fleet_plan import RouterLike
from sim.deployment import DEFAULTS
from sim.errors import ConfigError, SimError
from sim.metrics.distributions import distributions
from sim.report.comparison import Compared, comparison_rows, comparison_text
from sim.report.run_title import router_text
from sim.search.variations import variations
from sim.specs.engine import EngineConfig

Progress = Callable[[int, int], None]
AS_GIVEN = "as given"


@dataclass(frozen=True)
class Comparison:
    """The result of each run by what it is called, in the order asked for; printing it gives a table.

    `compared` is what differs: a `router`, or a `choice` of an engine argument. `refused` has the reasons why some did not run.
    """

    results: Mapping[str, Result]
    compared: Compared
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, Any]:
        """What `servecast compare --json` prints: the whole summary of each run."""
        runs = [{self.compared: name, **result.summary} for name, result in self.results.items()]
        return {f"{self.compared}s": runs} | ({"refused": dict(self.refused)} if self.refused else {})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The columns of the table, by run."""
        return list(comparison_rows(self.compared, self.summary[f"{self.compared}s"]))

    def write(self, folder: str | Path) -> None:
        """summary.json, report.html, routers.csv and routers.png (choices.csv, choices.png), all or none. Raises ConfigError where the folder holds
        anything else.
        """
        from sim.report.comparison_folder import write_comparison

        found = {name: distributions(result.seen.merged) for name, result in self.results.items()}
        write_comparison(Path(folder), self.compared, self.summary, self.rows, found)

    def __str__(self) -> str:
        return comparison_text(self.compared, self.summary[f"{self.compared}s"], self.refused)


def compare(
    *deployed: Any,
    routers: Sequence[RouterLike] | None = None,
    vary: Sequence[str] | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> Comparison:
    """Replay the same requests behind each of `routers`, or with the engine as given and with each change to it that `vary` asks for.

    `vary` names engine arguments, each with all its choices (`scheduling_policy`) or with values (`max_num_seqs=64,256`); without it and
    without routers, everything is tried that no vLLM has. All else, given by place or name, is that of `sim.simulate`. `progress` is
    called with (requests done, those of all runs). Raises ConfigError for both, and for fewer than two replicas or routers; what the
    engine as given can do and a changed one cannot stands in `refused`.
    """
    if routers is None:
        return _of_choices(deployed, vary, progress, **arguments)
    if vary is not None:
        raise ConfigError("routers and varied arguments are two comparisons; give one router, or leave `vary` out.")
    return _of_routers(deployed, routers, progress, **arguments)


def _of_routers(
    deployed: Iterable[Any], routers: Sequence[RouterLike], progress: Progress | None, **arguments: Any
) -> Comparison:
    names = list(map(router_text, routers))
    if len(set(names)) < max(2, len(names)):
        raise ConfigError(f"compare needs two different routers or more, got {', '.join(names) or 'none'}.")
    results = {}
    for number, (name, router) in enumerate(zip(names, routers, strict=True)):
        results[name] = simulate(*deployed, router=router, progress=_of_all(progress, number, len(names)), **arguments)
        if results[name].fleet.most_addresses < 2:
            raise ConfigError("a single replica needs no router; give --replicas or --fleet.")
    return Comparison(results, "router")


def _of_choices(
    deployed: Iterable[Any],
    vary: Sequence[str] | None,
    progress: Progress | None,
    *,
    engine: EngineConfig = DEFAULTS,
    **arguments: Any,
) -> Comparison:
    changes = variations(engine, vary)
    if not changes:
        raise ConfigError("nothing is varied: all that is asked for is given already; name other values.")
    count = 1 + len(changes)
    results = {AS_GIVEN: simulate(*deployed, engine=engine, progress=_of_all(progress, 0, count), **arguments)}
    refused = {}
    for number, (name, change) in enumerate(changes, 1):
        of_one = _of_all(progress, number, count)
        try:
            results[name] = simulate(*deployed, engine=replace(engine, **change), progress=of_one, **arguments)
        except SimError as error:
            refused[name] = str(error)
    return Comparison(results, "choice", refused)


def _of_all(progress: Progress | None, number: int, count: int) -> Progress | None:
    """The progress of one run as that of all."""
    return progress and (lambda done, all_of_one: progress(number * all_of_one + done, count * all_of_one))
