"""Options that several commands share, and how they speak: results to stdout, talk to stderr."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A catalogue name, a Hugging Face id, or a path to a folder or config.json.",
        show_default=False,
    ),
]
Gpu = Annotated[str, typer.Option(help="A GPU of `servecast gpus`, or the path of a YAML profile.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def print_json(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout; numbers JSON cannot hold are errors."""
    typer.echo(json.dumps(result, indent=2, allow_nan=False))


def warn(sentences: Iterable[str]) -> None:
    """Each sentence on a line of stderr."""
    for sentence in sentences:
        typer.echo(f"servecast: {sentence}", err=True)
