"""What the page shows: one configuration as its report does, or two side by side."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from sim.api import Result, simulate
from sim.errors import ConfigError, SimError
from sim.measure.finished import finished_of
from sim.measure.side_by_side import ComparedResults
from sim.report.page.blocks import Block, Code, Section
from sim.report.page.run import run_page
from sim.report.page.two_runs import two_runs
from sim.specs.serve_command import serve_command
from sim.web.controls import Given
from sim.web.what_if import WhatIf, simulate_arguments, simulate_command

NAMES = ("A", "B")
KEPT = 8
"""Results that are kept: whoever changes one of two configurations waits for that one, and going back takes no time."""

Items = tuple[tuple[str, str], ...]


class Answer(NamedTuple):
    """Sections of a page, and what it took to make them."""

    sections: Sequence[Section]
    took: str


class Answers:
    """Simulates what is asked for, one run at a time."""

    def __init__(self) -> None:
        self._one_at_a_time = Lock()
        self._simulated = lru_cache(maxsize=KEPT)(_simulated)

    def to(self, what_if: WhatIf) -> Answer:
        """Raises SimError for what cannot be simulated."""
        started_s = perf_counter()
        sides = [side for side in (what_if.first, what_if.second) if side is not None]
        with self._one_at_a_time:
            results = [
                self._result(what_if.load, side, name if len(sides) > 1 else "")
                for name, side in zip(NAMES, sides, strict=False)
            ]
            sections = _sections(results)
        sections.insert(1, Section("lines", "To run it", list(_lines(what_if.load, sides, results))))
        num_requests = sum(result.summary["arrived"] for result in results)
        return Answer(sections, f"{num_requests:,} requests in {perf_counter() - started_s:.2f} s")

    def _result(self, load: Given, configuration: Given, name: str) -> Result:
        try:
            return self._simulated(_items(load), _items(configuration))
        except SimError as error:
            raise ConfigError(f"configuration {name}: {error}" if name else str(error)) from None


def _items(given: Given) -> Items:
    return tuple(given.items())


def _simulated(load: Items, configuration: Items) -> Result:
    return simulate(**simulate_arguments(dict(load), dict(configuration)))


def _sections(results: Sequence[Result]) -> list[Section]:
    if len(results) == 1:
        return list(run_page(results[0].told).sections)
    named = dict(zip(NAMES, results, strict=True))
    finished = tuple(finished_of(name, result.summary) for name, result in named.items())
    return two_runs({name: result.told for name, result in named.items()}, ComparedResults(finished, ()).rows)


def _lines(load: Given, sides: Sequence[Given], results: Sequence[Result]) -> Iterator[Block]:
    for name, side, result in zip(NAMES, sides, results, strict=False):
        of = f" {name}" if len(sides) > 1 else ""
        pool = result.fleet.pools[0]
        servers = f", {pool.num_servers} times" if pool.num_servers > 1 else ""
        yield Code(f"Serve{of}{servers}", serve_command(pool.deployment.model.name, pool.given))
        yield Code(f"Simulate{of}", simulate_command(load, side))
