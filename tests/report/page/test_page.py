"""Pages as files: whole, valid, small, and the same each time."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from sim.report.figures.theme import BLUE, DARK, GREEN, GREY, LIGHT, PURPLE, VERMILLION, Figure
from sim.report.page.blocks import Block, Card, Cards, Chart, Charts, Page, Prose, Section
from sim.report.page.render import html_of
from tests.report.page.pages import everything, pages

VOID = {"br", "meta", "link", "path", "circle"}
PLOTLY_BYTES = 2_000_000


class Reader(HTMLParser):
    """Fails where tags do not match, where an id occurs twice, and where something is loaded from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.ids, self.targets, self.said = list[str](), set[str](), set[str](), ""
        self.feed(text)
        assert not self.open
        assert self.targets <= self.ids

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert "src" not in given
        if name := given.get("id"):
            assert name not in self.ids
            self.ids.add(name)
        if (href := given.get("href")) and tag == "a":
            assert href.startswith("#")
            self.targets.add(href[1:])
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += "" if {"script", "style"} & set(self.open) else data


def charts(page: Page) -> Iterator[Figure]:
    for section in page.sections:
        for block in section.blocks:
            found = block.charts if isinstance(block, Charts) else [block] if isinstance(block, Chart) else []
            yield from (chart.figure for chart in found)


def test_a_page_is_one_file_that_loads_nothing() -> None:
    """Its links lead to its own sections; what is not plotly's is small."""
    read = Reader(everything())
    assert {"run-overview", "run-timeline", "fleet-fleet", "figure-1"} <= read.ids
    assert len(everything()) - PLOTLY_BYTES < 600_000
    assert "Slowest requests" in read.said


def test_figures_are_in_the_schema_of_plotly() -> None:
    """Which knows no other names and values; each has a title, and its axes have units."""
    import plotly.graph_objects as go

    for page in pages().values():
        found = list(charts(page))
        assert found
        for figure in found:
            assert go.Figure(figure).layout.title.text
            for axis in (figure["layout"]["xaxis"], figure["layout"]["yaxis"]):
                assert axis["title"]["text"] or axis["type"] == "category"


def test_lines_are_seen_on_light_and_on_dark() -> None:
    """With a contrast of 3 or more, as the Web Content Accessibility Guidelines ask of graphics."""
    for colour in (BLUE, VERMILLION, GREEN, PURPLE, GREY):
        for paper in (LIGHT["paper"], DARK["paper"]):
            low, high = sorted((luminance(colour), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, paper)


def luminance(colour: str) -> float:
    """Relative, by https://www.w3.org/TR/WCAG21/#dfn-relative-luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_whatever_comes_from_outside_is_escaped() -> None:
    """In titles, texts and figures."""
    evil = "</script><script>alert('&')</script>"
    figure = {"data": [], "layout": {"title": {"text": evil}, "height": 100}}
    blocks: list[Block] = [Cards([Card(evil, evil)]), Prose([evil]), Chart(figure)]
    text = html_of(Page(evil, evil, [evil], [Section("one", evil, blocks)]))
    assert len(re.findall("<script", text)) == len(
        re.findall("<script", html_of(Page("", "", [], [Section("one", "", [Chart(figure)])])))
    )
    assert Reader(text).said.count(evil) == 11


def test_the_same_page_has_the_same_bytes() -> None:
    html_again = html_of(pages()["run"])
    assert html_again == html_of(pages()["run"])
    assert "wall_time" not in html_again
