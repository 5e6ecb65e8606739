"""A page with everything that pages have: each of these once, one below the other."""

from functools import cache

from sim.report.page.blocks import Page, Section
from sim.report.page.render import html_of
from tests import results

SIMULATION = {"overview", "latency", "timeline", "limits", "requests", "memory", "provenance"}


@cache
def pages() -> dict[str, Page]:
    """By what they are of."""
    return {"run": results.crowded()._page(), "fleet": results.fleet()._page()}


@cache
def everything() -> str:
    """All sections of all pages as one file, those of several pages from the first of these."""
    sections = [
        Section(f"{name}-{section.name}", section.title, section.blocks)
        for name, page in pages().items()
        for section in page.sections
        if name == "run" or section.name not in SIMULATION
    ]
    return html_of(Page("Everything", "All pages", ["one below the other"], sections))
