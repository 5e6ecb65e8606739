"""What pages are made of. Each kind of block has a template of its name in templates/blocks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sim.report.figures.theme import Figure
from sim.report.tables import Table, cell_text

NUMBER = re.compile(r"-|~?[-+]?(inf|[\d,.]+)( ?%)?")


class Card(NamedTuple):
    """A headline figure; `within` is its interval or what else belongs to it."""

    label: str
    value: str
    unit: str = ""
    within: str = ""


@dataclass(frozen=True)
class Cards:
    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


@dataclass(frozen=True)
class Chart:
    """A figure of plotly; those that are `linked` zoom together."""

    figure: Figure
    note: str = ""
    linked: bool = False
    kind: ClassVar[str] = "chart"

    @property
    def title(self) -> str:
        return str(self.figure["layout"]["title"]["text"])


@dataclass(frozen=True)
class Charts:
    """Side by side where there is room."""

    charts: Sequence[Chart]
    kind: ClassVar[str] = "charts"


class Figure90(NamedTuple):
    """A figure, and its 90 % interval as text where it has one."""

    value: str
    within: str


@dataclass(frozen=True)
class Figures:
    """Rows of figures under a heading."""

    title: str
    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Figure90]]]
    kind: ClassVar[str] = "figures"


@dataclass(frozen=True)
class Grid:
    """A table under a heading."""

    table: Table
    title: str = ""
    note: str = ""
    kind: ClassVar[str] = "grid"

    @property
    def are_numbers(self) -> list[bool]:
        """Of each column: whether all of its cells are figures."""
        cells = [[bool(NUMBER.fullmatch(cell_text(value))) for value in row] for row in self.table.rows]
        return [place > 0 and all(row[place] for row in cells) for place in range(len(self.table.header))]


class Share(NamedTuple):
    """A part of a whole from 0 to 1, and what is said beside it."""

    label: str
    share: float
    text: str


@dataclass(frozen=True)
class Bars:
    """Shares as bars below each other."""

    title: str
    shares: Sequence[Share]
    kind: ClassVar[str] = "bars"


@dataclass(frozen=True)
class Stack:
    """Shares as one bar from end to end."""

    title: str
    shares: Sequence[Share]
    kind: ClassVar[str] = "stack"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    title: str
    facts: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "facts"


class Story(NamedTuple):
    """One request: when it came, the phases that it went through as shares of its time, and a sentence."""

    name: str
    when: str
    text: str
    phases: Sequence[Share]


@dataclass(frozen=True)
class Stories:
    title: str
    stories: Sequence[Story]
    kind: ClassVar[str] = "stories"


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    title: str
    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Prose:
    """Sentences, a paragraph each; `is_warning` has them stand out."""

    sentences: Sequence[str]
    is_warning: bool = False
    kind: ClassVar[str] = "prose"


Block = Cards | Chart | Charts | Figures | Grid | Bars | Stack | Facts | Stories | Code | Prose


class Section(NamedTuple):
    """Some blocks under a heading, which the page's menu leads to."""

    name: str
    title: str
    blocks: Sequence[Block]


class Page(NamedTuple):
    """`what` is the kind of result, `title` what it is about, in one line, and `lines` more of that."""

    what: str
    title: str
    lines: Sequence[str]
    sections: Sequence[Section]
