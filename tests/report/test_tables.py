import io
from collections import Counter

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists, text, tuples

from sim.report.tables import aligned, details
from tests.properties import examples


def test_figures_stand_right_and_words_left() -> None:
    """Thousands are grouped, fractions have two decimals, nothing is a dash."""
    table = aligned(("name", "count", "share"), [("a", 12345, 0.5), ("long one", 7, None)])
    assert table.splitlines() == [
        "name       count  share",
        "a         12,345   0.50",
        "long one       7      -",
    ]


def test_details_are_a_line_a_fact_and_indent_what_is_nested() -> None:
    """Small numbers keep their digits."""
    assert details({"name": "x", "fit": {"launch_s": 3.5e-06, "sizes": (1, 2)}, "price": None}).splitlines() == [
        "name: x",
        "fit:",
        "  launch_s: 3.5e-06",
        "  sizes: 1, 2",
        "price: -",
    ]


WIDE = (
    ("mark", "configuration", "tok/s", "limited by"),
    [
        ("best", "max_model_len=16384 max_num_batched_tokens=1024 enforce_eager=True", 12345.678, "HBM bandwidth 80%, compute 18%"),
        ("tied", "vLLM's defaults", 1.0, None),
    ],
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_width_by_breaking_texts_and_never_numbers(width: int) -> None:
    """Every part of every cell is there, and a name is broken only where its parts meet."""
    table = aligned(*WIDE, width=width)
    assert max(map(len, table.splitlines())) <= width
    assert "12,345.68" in table
    words = "".join(table.split())
    assert all(part in words for part in ("max_model_len=", "16384", "enforce_eager=", "bandwidth", "18%", "vLLM's"))


def test_a_broken_text_goes_on_below_itself() -> None:
    """The columns beside it stay empty in those lines."""
    table = aligned(("id", "words", "n"), [("a", "one two three four", 5)], width=17)
    assert table.splitlines() == [
        "id  words       n",
        "a   one two     5",
        "    three four",
    ]


def test_a_table_that_fits_is_left_alone() -> None:
    """Width is no reason to spread or break anything."""
    assert aligned(*WIDE, width=200) == aligned(*WIDE, width=1000)
    assert len(aligned(*WIDE, width=200).splitlines()) == 3


def test_rows_become_blocks_where_numbers_would_have_to_break() -> None:
    """A column a line, under the row's first cell."""
    table = aligned(("id", "first", "second"), [("a", 1_000_000, 2_000_000), ("b", 3_000_000, None)], width=20)
    assert table.splitlines() == [
        "id a",
        "  first   1,000,000",
        "  second  2,000,000",
        "",
        "id b",
        "  first   3,000,000",
        "  second  -",
    ]


@pytest.mark.parametrize(("columns", "widest"), [("80", 80), ("200", 200), ("", 100)])
def test_the_terminal_says_how_wide_tables_are_and_pipes_have_a_hundred(
    columns: str, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COLUMNS is what terminals set."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    long_row = ("mark", " ".join(["word"] * 100), 1)
    lines = aligned(("", "words", "n"), [long_row]).splitlines()
    assert widest - 5 < max(map(len, lines)) <= widest


@examples(200)
@given(
    rows=lists(tuples(text("ab -_/=0.é", max_size=30), floats(-1e9, 1e9), text("xyz ", max_size=40)), min_size=1, max_size=4),
    width=integers(10, 120),
)  # fmt: skip
def test_nothing_is_cut_off_at_any_width(rows: list[tuple[str, float, str]], width: int) -> None:
    """All that is no blank in the cells is in the table, as often."""
    table = aligned(("one", "two", "three"), rows, width=width)
    for word in (f"{number:,.2f}" for _, number, _ in rows):
        assert word in table
    letters = Counter("".join(f"{first}{number:,.2f}{last}" for first, number, last in rows))
    found = Counter(table)
    assert all(found[letter] >= count for letter, count in letters.items() if letter != " ")
