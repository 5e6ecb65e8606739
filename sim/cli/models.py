"""`servecast models`: the models that are built in."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import model_names
from sim.cli.options import Json, print_answer, print_json

if TYPE_CHECKING:
    from sim.specs.model import ModelSpec
    from sim.specs.models import KnownModel

app = typer.Typer(add_completion=False)
HEADER = ("name", "parameters", "active", "layers", "attention", "quantization", "context")


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this one: a name, hub id or path.", show_default=False, autocompletion=model_names),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the models that are built in, or show one."""
    from sim.report.tables import aligned, details
    from sim.specs.models import known_models, load_model

    if name is not None:
        print_answer(_facts(load_model(name)), details, as_json=as_json)
        return
    known = known_models()
    if as_json:
        print_json({"models": [model._asdict() for model in known]})
    else:
        typer.echo(aligned(HEADER, map(_row, known)))


def _row(model: "KnownModel") -> tuple[object, ...]:
    return (
        model.name,
        _billions(model.num_parameters),
        _billions(model.num_active_parameters),
        model.num_layers,
        "+".join(model.attention),
        model.quantization,
        model.max_model_len,
    )


def _billions(num_parameters: int) -> str:
    return f"{num_parameters / 1e9:.2f}B"


def _facts(model: "ModelSpec") -> dict[str, Any]:
    attention = Counter(layer.attention.kind for layer in model.layers)
    return {
        "name": model.name,
        "architecture": model.architecture,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "num_vision_parameters": model.num_vision_parameters,
        "num_layers": model.num_layers,
        "layers_by_attention": dict(attention),
        "num_moe_layers": sum(layer.experts is not None for layer in model.layers),
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "max_model_len": model.max_model_len,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "source": model.source,
    }
