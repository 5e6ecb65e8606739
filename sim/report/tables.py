"""Aligned text tables."""

from collections.abc import Iterable, Mapping, Sequence


def aligned(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers to the right, text to the left, `-` for None."""
    cells = [tuple(header), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(_is_figure(cell) for cell in column[1:]) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else str(value)


def _is_figure(cell: str) -> bool:
    return cell in {"-", "inf"} or cell[:1].isdigit()


def details(facts: Mapping[str, object], indent: str = "") -> str:
    """Each fact on a line of its own, nested ones indented below their name."""
    return "\n".join(
        f"{indent}{name}:\n{details(value, indent + '  ')}"
        if isinstance(value, Mapping)
        else f"{indent}{name}: {_exact(value)}"
        for name, value in facts.items()
    )


def _exact(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else _cell(value)
