from sim.report.tables import aligned, details


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
