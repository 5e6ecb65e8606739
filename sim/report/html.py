"""Results as HTML for notebooks: headings, tables and texts; self-contained, with all values escaped."""

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from sim.report.console import BUSY_WITH, ENGINE, FIGURES, LATENCIES, SPECULATION, TOTALS, WAITING_FOR
from sim.report.intervals import between, sketched
from sim.report.run_title import run_title, search_title
from sim.report.search import capacity_blocks, optimization_blocks
from sim.report.tables import Table, cell_text, is_figure
from sim.report.validation import report_blocks, runs_title

Summary = Mapping[str, Any]
TITLE_WIDTH = 120
CELL = "padding:2px 10px"


def page(title: str, blocks: Iterable[str | Table]) -> str:
    """A title of one or several lines above texts and tables."""
    parts = (_table(block) if isinstance(block, Table) else _text(block) for block in blocks)
    return f"<div><p><b>{escape(title).replace(chr(10), '<br>')}</b></p>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'


def _table(table: Table) -> str:
    header = "".join(f'<th style="{CELL};text-align:left">{escape(name)}</th>' for name in table.header)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    text = cell_text(value)
    return f'<td style="{CELL};text-align:{"right" if is_figure(text) else "left"}">{escape(text)}</td>'


def simulation_html(summary: Summary) -> str:
    """The figures of the printed table, latencies side by side."""
    return page(run_title(summary, TITLE_WIDTH), _simulation_blocks(summary))


def _simulation_blocks(summary: Summary) -> Iterator[str | Table]:
    yield Table(("", ""), [(label, summary[key]) for label, key in TOTALS.items() if key in summary])
    rows = [(title, *_latencies(summary, name)) for name, title in LATENCIES.items()]
    yield Table(("ms", *FIGURES), rows)
    yield engine_table(summary)
    limits = summary["limits"]
    shares = [(label, limits["busy"].get(name)) for label, name in BUSY_WITH.items()]
    shares += [(label, limits["queued"][name]) for label, name in WAITING_FOR.items() if name in limits["queued"]]
    yield Table(("What limits it", ""), [(label, _percent("(%)", share)) for label, share in shares])
    yield "\n".join([*limits["warnings"], summary["confidence"]["text"]])


def engine_table(summary: Summary) -> Table:
    """What a client cannot measure."""
    engine = [(label, summary[key]) for label, key in {**ENGINE, **SPECULATION}.items() if key in summary]
    return Table(("", ""), [(label, _percent(label, value)) for label, value in engine])


def _latencies(summary: Summary, name: str) -> Iterator[str]:
    """Each figure, with its 90 % interval where it has one."""
    intervals = summary["confidence"].get("intervals", {})
    for key in (f"{figure}_{name}_ms" for figure in FIGURES.values()):
        figure = cell_text(summary[key])
        beside = between(intervals[key]) if intervals.get(key) else sketched(summary, key)
        yield f"{figure} ({beside})" if beside else figure


def _percent(label: str, value: float | None) -> float | None:
    return value * 100 if label.endswith("(%)") and value is not None else value


def optimization_html(summary: Summary) -> str:
    """What `servecast optimize` prints."""
    return page(search_title(summary, TITLE_WIDTH), optimization_blocks(summary))


def capacity_html(summary: Summary) -> str:
    """What `servecast capacity` prints."""
    return page(search_title(summary, TITLE_WIDTH), capacity_blocks(summary))


def validation_html(validation: Summary) -> str:
    """What `servecast validate` prints."""
    return page(runs_title(validation), report_blocks(validation))
