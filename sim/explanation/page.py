"""The page of a run with its explanation: what P99 is made of, and what helped where it was tried."""

from collections.abc import Iterator

from sim.api import Result
from sim.explanation.explain import Explanation
from sim.explanation.paragraph import NAMES
from sim.explanation.parts import PARTS
from sim.report.page.blocks import Bars, Block, Grid, Page, Prose, Section, Share
from sim.report.page.run import run_page
from sim.report.tables import cell_text


def explained_page(result: Result, found: Explanation) -> Page:
    """All that a result's own page has, and behind what limits it, why its slowest requests are slow."""
    page = run_page(result.told)
    place = 1 + next(number for number, section in enumerate(page.sections) if section.name == "limits")
    explained = Section("explained", "Why P99 is what it is", list(_blocks(found)))
    return page._replace(sections=[*page.sections[:place], explained, *page.sections[place:]])


def _blocks(found: Explanation) -> Iterator[Block]:
    yield Prose([found.text])
    for name, one in found.slowest.items():
        shares = [
            Share(PARTS[part], ms / one.mean_ms, f"{cell_text(ms)} ms, {ms / one.mean_ms:.1%}")
            for part, ms in one.parts_ms.items()
        ]
        yield Bars(f"{NAMES[name]}: the slowest 1 %, {cell_text(one.mean_ms)} ms in the mean", shares)
    if found.helpful:
        yield Grid(found.helpful, "What would help", "Each was simulated with all else as it is; ~ is within noise.")
    if others := list(found.others()):
        yield Prose(others)
