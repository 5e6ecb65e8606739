"""The sentences of docs/seeds.md and docs/quantization.md, apart from their examples, and the figures in them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.docs.fidelity import ROOT

PAGES = ("seeds.md", "quantization.md")
EXAMPLE = re.compile(r"^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?!\w)")
NO_FIGURES = re.compile(
    r"\((?:[\d.]+(?:, | to )?)+(?:and \"[^\"]*\")?\)|section \d+"  # of a document
    r'|"[^"]*"'  # see `quoted`
    r"|`[^`]*`|\]\([^)]*\)"
    r"|Llama 2|2:4|\d+ B\b|pull request \d+|(?:al\.|of) 20\d\d"
)
PRESET_ROWS = {
    "chat": (
        r"chunks of ([\d,]+) in steps of ([\d,]+) tokens \| steady gaps between tokens "
        r"\| P99 gaps (\d+) to (\d+) % shorter \| P99 first tokens ([\d.]+) to ([\d.]+) times as late"
    ),
    "batch": (
        r"steps of ([\d,]+) tokens, (\d+) seats, (\d+) % of the memory \| tokens a second "
        r"\| (\d+) to (\d+) % more \| P99 gaps up to ([\d.]+) times as long"
    ),
    "interactive": (
        r"no async scheduling \| first tokens soon \| (\d+) to (\d+) % sooner in the mean: [\w ,]+ \| up to (\d+) % longer a token"
    ),
}


class Passage(NamedTuple):
    """Sentences, and the examples right before and behind them."""

    text: str
    examples: str


def passages(page: str) -> Iterator[Passage]:
    pieces = ["", *EXAMPLE.split((ROOT / "docs" / page).read_text(encoding="utf-8")), ""]
    for place in range(1, len(pieces), 2):
        yield Passage(" ".join(pieces[place].split()), f"{pieces[place - 1]} {pieces[place + 1]}")


def said(page: str, pattern: str) -> tuple[float, ...]:
    """The figures of the one sentence that is like this, and those alone."""
    (found,) = [match for passage in passages(page) for match in re.finditer(pattern, passage.text)]
    return tuple(map(number, found.groups()))


def quoted(page: str) -> Iterator[float]:
    """The figures that a document is quoted with."""
    for passage in passages(page):
        for quotation in re.findall(r'"[^"]*"', passage.text):
            yield from numbers(quotation)


def numbers(text: str) -> list[float]:
    return [number(one) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def printed(page: str, pattern: str) -> tuple[float, ...]:
    """The figures of the one place that is like this, in an example or anywhere."""
    (found,) = re.finditer(pattern, (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return tuple(map(number, found.groups()))
