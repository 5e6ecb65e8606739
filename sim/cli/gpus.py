"""`servecast gpus`: the GPUs that are built in."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import Json, print_answer, print_json
from sim.units import GIB, GIGA, TERA

if TYPE_CHECKING:
    from sim.specs.hardware import HardwareProfile

app = typer.Typer(add_completion=False)
HEADER = ("name", "GiB", "TB/s", "bf16 TFLOPS", "link GB/s", "$/h", "kernels")


@app.command()
def gpus(
    name: Annotated[str | None, typer.Argument(help="Show this one in detail.", show_default=False)] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the GPUs that are built in, or show one."""
    from sim.report.tables import aligned, details
    from sim.specs.hardware import known_gpus, load_gpu

    if name is not None:
        print_answer(asdict(load_gpu(name)), details, as_json=as_json)
        return
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
        gpu.price_usd_per_hour,
        gpu.operators.decode_attention.basis,
    )
