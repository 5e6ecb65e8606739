"""Pages in a real browser, on a phone and on a desktop, in the light and in the dark; one start and one page for all of it."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import assert_fits, needs_chromium, opened_page
from tests.report.page.pages import everything

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = needs_chromium
COLOURS = (
    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.chart .xtitle')).fill]"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Page]":
    """The page, drawn without a network."""
    file = tmp_path_factory.mktemp("page") / "everything.html"
    file.write_text(everything(), encoding="utf-8")
    with opened_page(file.as_uri(), offline=True) as opened:
        yield opened


def test_all_charts_are_drawn_with_their_axes(page: "Page") -> None:
    """Each has what it shows, and names on both axes but where names stand at the axis itself."""
    drawn = page.evaluate("document.documentElement.dataset.drawn")
    assert int(drawn) == page.locator(".chart").count() > 12
    assert page.locator(".chart .plot-container").count() == int(drawn)
    assert page.locator(".chart").filter(has=page.locator(".xtitle")).count() == int(drawn)


def test_charts_over_the_same_time_zoom_together(page: "Page") -> None:
    ranges = page.evaluate(
        """async () => {
            const linked = [...document.querySelectorAll(".chart[data-linked]")];
            await Plotly.relayout(linked[0], {"xaxis.range": [1, 2]});
            await new Promise((done) => setTimeout(done, 300));
            return linked.map((place) => place.layout.xaxis.range.join());
        }"""
    )
    assert set(ranges) == {"1,2"}


def test_light_and_dark_are_the_readers_choice(page: "Page") -> None:
    """A key press is enough, and charts change with the page."""
    light = page.evaluate(COLOURS)
    page.focus("#theme")
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({COLOURS}) !== '{json.dumps(light, separators=(',', ':'))}'")
    dark = page.evaluate(COLOURS)
    assert all(before != after for before, after in zip(light, dark, strict=True))
    page.keyboard.press("Enter")
    page.wait_for_function(f"JSON.stringify({COLOURS}) === '{json.dumps(light, separators=(',', ':'))}'")


@pytest.mark.parametrize("width", [1440, 390])
def test_nothing_is_wider_than_the_screen(page: "Page", width: int) -> None:
    assert_fits(page, width)


def test_the_menu_leads_to_every_section(page: "Page") -> None:
    for link in page.locator("nav a").all():
        assert page.locator(str(link.get_attribute("href"))).count() == 1
