"""The keys of a hardware profile with units, meaning and what happens where they are absent."""

import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from sim.report.tables import aligned, terminal_width
from sim.specs.hardware_file import FitBlock, MessageBlock, MessagesBlock, OperatorsBlock, Peaks, ProfileFile
from sim.specs.hardware_rules import FIGURES, NOT_FIGURES, OPERATORS

Row = tuple[str, str, str]


def schema_text() -> str:
    """A table of every key, how figures are written, and the figures of each operator."""
    return (
        "Each figure is a plain number, or {value: 80, source: 'whose figure it is'}.\n\n"
        + aligned(("key", "absent?", "unit and meaning"), _rows())
        + "\n\n`operators` has a block each of these, with `basis` and `source`; the one or the other may be absent:\n"
        + "\n".join(_operator(name) for name in OPERATORS)
        + "\n\nWhat is derived is taken from the nearest known GPU, named under `derived`, and widens a forecast's error."
    )


def _rows() -> Iterator[Row]:
    for key, field in ProfileFile.model_fields.items():
        if key == "peak_tflops":
            yield from (
                (f"{key}.{dtype}", _absence(peak), _meaning(peak)) for dtype, peak in Peaks.model_fields.items()
            )
        elif key != "calibration":
            yield key, "derived" if key in {*FIGURES, *NOT_FIGURES, "operators"} else _absence(field), _meaning(field)


def _absence(field: FieldInfo) -> str:
    return "required" if field.is_required() else "may be"


def _meaning(field: FieldInfo) -> str:
    return field.description or ""


def _operator(name: str) -> str:
    """Its figures; by dtype where it has a block for each."""
    annotation = OperatorsBlock.model_fields[name].annotation
    if annotation is MessagesBlock:
        return f"  {name}, for {', '.join(MessagesBlock.model_fields)}: {_figures(MessageBlock)}"
    block = next((argument for argument in getattr(annotation, "__args__", ()) if _is_block(argument)), annotation)
    assert block is not None, f"operators.{name} has a block"
    line = f"  {name}{'' if block is annotation else ', by dtype'}: {_figures(block)}"
    return textwrap.fill(line, terminal_width(), subsequent_indent="    ")


def _figures(block: Any) -> str:
    return ", ".join(key for key in block.model_fields if key not in FitBlock.model_fields)


def _is_block(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, FitBlock)
