"""`servecast validate`: measured runs against their replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.options import Json, print_json, warn
from sim.cli.progress import progress_bar
from sim.errors import ConfigError

app = typer.Typer(add_completion=False)
Composition = Literal["unified", "additive", "max"]
RunFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS.json...",
        help="Measured runs, or JSON of vllm bench serve --save-result --save-detailed.",
        show_default=False,
    ),
]
BenchGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="The GPU, by name or YAML, in place of those that runs name; benchmarks of vLLM name none.",
        show_default=False,
    ),
]


@app.command(cls=EngineCommand)
def validate(
    ctx: typer.Context,
    *,
    runs: RunFiles,
    gpu: BenchGpu = None,
    only_known_args: Annotated[
        bool, typer.Option("--only-known-args", help="Leave out runs whose engine arguments are unknown.")
    ] = False,
    composition: Annotated[Composition, typer.Option(help="How mixed steps are timed.")] = "unified",
    seed: Annotated[int, typer.Option(help="For arrivals and lengths that are random.", min=0)] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write measured against predicted to this PNG.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay measured runs and report how far the forecast is off, by metric, GPU, model family and workload."""
    from sim import api
    from sim.report.validation import console_report, scatter_plot, unreplayed

    parsed = engine_flags(ctx)
    warn(parsed.warnings)
    measured = api.read_measured(
        runs, model=parsed.model, gpu=gpu, engine=parsed.engine, vllm_version=parsed.vllm_version
    )
    with progress_bar("replaying") as progress:
        validation = api.validate(
            measured, only_known_args=only_known_args, gpu=gpu, composition=composition, seed=seed, progress=progress
        )
    found = validation.to_json()
    if plot:
        _write_plot(plot, lambda path: scatter_plot(path, found, title=f"{len(validation.replayed)} measured runs"))
    if as_json:
        print_json(found)
        warn(unreplayed(found))
    else:
        typer.echo(console_report(found))


def _write_plot(path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path} cannot be written: {error}; name a PNG in an existing folder.") from error
