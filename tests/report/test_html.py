"""Results in notebooks."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

import sim
from sim.errors import ConfigError
from sim.measure.validate import Validation
from sim.report.html import page
from sim.report.intervals import between
from sim.report.tables import Table
from tests.measure.makers import make_run

VOID = {"br"}


class Page(HTMLParser):
    """What a browser would read: text, the cells of each row; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.open, self.rows = "", set[str](), list[str](), list[list[str]]()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {name for name, _ in attrs} - {"style"}, "nothing is loaded from elsewhere"
        self.tags.add(tag)
        self.open += [] if tag in VOID else [tag]
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1] in {"td", "th"}:
            self.rows[-1].append(data)


def test_whatever_comes_from_outside_is_escaped() -> None:
    """In titles, texts, headers and cells."""
    evil = "<script>alert('&')</script>"
    read = Page(page(f"{evil}\nsecond", [evil, Table((evil,), [(evil,)])]))
    assert read.tags == {"div", "p", "b", "br", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    assert read.text.count(evil) == 4


def test_a_simulation_is_shown_with_its_figures_and_what_was_run(tmp_path: Path) -> None:
    """Also one of a trace with a name that would be a tag."""
    trace = tmp_path / "<b>.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,1\n")
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=sim.EngineConfig(max_num_seqs=8))
    read = Page(result._repr_html_())
    assert str(trace) in read.text
    assert "max_num_seqs=8" in read.text
    assert ["Successful requests", "2"] in read.rows
    (ttft,) = (row for row in read.rows if row[:1] == ["Time to First Token"])
    low, high = result.summary["confidence"]["intervals"]["p99_ttft_ms"]
    assert ttft[-1] == f"{result.summary['p99_ttft_ms']:,.2f} ({between((low, high))})"
    assert result.summary["confidence"]["text"] in read.text


def test_a_simulation_draws_itself() -> None:
    """Either of the two plots that a folder gets."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=20)
    for figure in (result.plot(), result.plot("latency")):
        assert isinstance(figure, Figure)
        assert len(figure.axes) == 4
        assert "first 20 requests" in figure.get_suptitle()
    kind: Any = "pie"
    with pytest.raises(ConfigError, match=r"^plot draws `latency`, `timeline` or `roofline`, got 'pie'"):
        result.plot(kind)


def test_searches_show_and_draw_themselves() -> None:
    """The tables and texts of the command line, and the plots of the folder."""
    options: Any = {"slo": ["ttft_p99=500ms"], "limit": 40}
    space = {"max_num_seqs": [8, 64]}
    found = sim.optimize("Llama-3.1-8B", "h100-sxm", "chat", space=space, trials=4, **options)
    read = Page(found._repr_html_())
    assert found.best["serve_command"] in read.text
    assert any(row and row[0] == "best" for row in read.rows)
    assert "for throughput; within ttft_p99 <= 500 ms" in found.plot().get_suptitle()
    assert "max_num_seqs" in found.plot("max_num_seqs").get_suptitle()
    with pytest.raises(ConfigError, match="'max_num_seq' was not varied; there are max_num_seqs"):
        found.plot("max_num_seq")
    limit = sim.capacity("Llama-3.1-8B", "h100-sxm", "chat", **options)
    assert limit.summary["serve_command"] in Page(limit._repr_html_()).text
    assert isinstance(limit.plot(), Figure)


def test_a_validation_shows_and_draws_itself(tmp_path: Path) -> None:
    """Also one of which nothing could be replayed."""
    found = sim.validate([make_run(tmp_path), make_run(tmp_path, id="a <run>", model="no/such-model")])
    read = Page(found._repr_html_())
    assert "a <run>" in read.text
    assert any(row[0] == "ttft_mean" for row in read.rows)
    assert found.plot().get_suptitle().startswith("2 measured runs of ")
    nothing = Validation(())
    assert "0 measured runs" in Page(nothing._repr_html_()).text
    assert isinstance(nothing.plot(), Figure)
