"""Pages in a real browser, on a phone and on a desktop, in the light and in the dark; one start, one page and so one test for all of it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser import assert_fits, needs_chromium, opened_page
from tests.report.page.pages import everything

if TYPE_CHECKING:
    from playwright.sync_api import Page

COLOURS = (
    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.chart .xtitle')).fill]"
)


@needs_chromium
def test_a_page_works_without_a_network(tmp_path: Path) -> None:
    file = tmp_path / "everything.html"
    file.write_text(everything(), encoding="utf-8")
    with opened_page(file.as_uri(), offline=True) as page:
        all_charts_are_drawn_with_their_axes(page)
        charts_over_the_same_time_zoom_together(page)
        light_and_dark_are_the_readers_choice(page)
        the_menu_leads_to_every_section(page)
        for width in (1440, 390):
            assert_fits(page, width)


def all_charts_are_drawn_with_their_axes(page: "Page") -> None:
    """Each has what it shows, and names on both axes but where names stand at the axis itself."""
    drawn = page.evaluate("document.documentElement.dataset.drawn")
    assert int(drawn) == page.locator(".chart").count() > 12
    assert page.locator(".chart .plot-container").count() == int(drawn)
    assert page.locator(".chart").filter(has=page.locator(".xtitle")).count() == int(drawn)


def charts_over_the_same_time_zoom_together(page: "Page") -> None:
    ranges = page.evaluate(
        """async () => {
            const linked = [...document.querySelectorAll(".chart[data-linked]")];
            await Plotly.relayout(linked[0], {"xaxis.range": [1, 2]});
            await new Promise((done) => setTimeout(done, 300));
            return linked.map((place) => place.layout.xaxis.range.join());
        }"""
    )
    assert set(ranges) == {"1,2"}


def light_and_dark_are_the_readers_choice(page: "Page") -> None:
    """A key press is enough, and charts change with the page."""
    light = page.evaluate(COLOURS)
    page.focus("#theme")
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({COLOURS}) !== '{json.dumps(light, separators=(',', ':'))}'")
    dark = page.evaluate(COLOURS)
    assert all(before != after for before, after in zip(light, dark, strict=True))
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({COLOURS}) === '{json.dumps(light, separators=(',', ':'))}'")


def the_menu_leads_to_every_section(page: "Page") -> None:
    for link in page.locator("nav a").all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
