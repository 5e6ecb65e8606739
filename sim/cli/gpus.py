"""`servecast gpus`: the GPUs that are built in."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.completion import gpu_names
from sim.cli.options import Json, print_answer, print_json
from sim.errors import ConfigError
from sim.units import GIB, GIGA, TERA

if TYPE_CHECKING:
    from sim.specs.hardware import HardwareProfile

app = typer.Typer(add_completion=False)
HEADER = ("name", "GiB", "TB/s", "bf16 TFLOPS", "link GB/s", "kernels", "$/h", "price of")


@app.command()
def gpus(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show this one in detail: a name, or the path of a YAML.", show_default=False, autocompletion=gpu_names
        ),
    ] = None,
    *,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="Print its whole profile as a YAML that loads as the same GPU.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the keys of a profile; with --json as JSON Schema.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the GPUs that are built in, or show one."""
    if schema:
        _print_schema(name, as_yaml=as_yaml, as_json=as_json)
    elif name is not None:
        _print_one(name, as_yaml=as_yaml, as_json=as_json)
    elif as_yaml:
        raise ConfigError("--yaml prints one profile; name its GPU before it.")
    else:
        _print_all(as_json=as_json)


def _print_schema(name: str | None, *, as_yaml: bool, as_json: bool) -> None:
    from sim.report.profile_schema import schema_text
    from sim.specs.hardware_file import ProfileFile

    if name is not None or as_yaml:
        raise ConfigError("--schema is about every profile; leave the GPU and --yaml out.")
    if as_json:
        print_json(ProfileFile.model_json_schema())
    else:
        typer.echo(schema_text())


def _print_one(name: str, *, as_yaml: bool, as_json: bool) -> None:
    from sim.report.tables import details
    from sim.specs.hardware import load_gpu, profile_yaml

    if as_yaml and as_json:
        raise ConfigError("--yaml and --json are two forms of the same; leave one of them out.")
    if as_yaml:
        typer.echo(profile_yaml(name), nl=False)
    else:
        print_answer(asdict(load_gpu(name)), details, as_json=as_json)


def _print_all(*, as_json: bool) -> None:
    from sim.report.tables import aligned
    from sim.specs.hardware import known_gpus

    profiles = known_gpus()
    if as_json:
        print_json({"gpus": [asdict(gpu) for gpu in profiles]})
    else:
        typer.echo(aligned(HEADER, map(_row, profiles)))


def _row(gpu: "HardwareProfile") -> tuple[object, ...]:
    return (
        gpu.name,
        gpu.memory_bytes / GIB,
        gpu.memory_bandwidth_bytes_per_s / TERA,
        round(gpu.peak_flops["bf16"] / TERA),
        round(gpu.link_bytes_per_s / GIGA),
        gpu.operators.decode_attention.basis,
        gpu.price_usd_per_hour,
        (gpu.price_source or "none known").split(":")[0],
    )
