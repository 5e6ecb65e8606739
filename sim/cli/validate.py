"""`servecast validate`: measured runs against their replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.engine_flags import EngineCommand
from sim.cli.measured import OnlyKnownArgs, RunFiles, read_runs
from sim.cli.options import Composition, Json, print_answer, warn
from sim.cli.progress import progress_bar
from sim.errors import ConfigError

app = typer.Typer(add_completion=False)
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
    only_known_args: OnlyKnownArgs = False,
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

    measured = read_runs(ctx, runs, gpu)
    with progress_bar("replaying") as progress:
        validation = api.validate(
            measured, only_known_args=only_known_args, gpu=gpu, composition=composition, seed=seed, progress=progress
        )
    found = validation.to_json()
    if plot:
        _write_plot(plot, lambda path: scatter_plot(path, found, title=f"{len(validation.replayed)} measured runs"))
    print_answer(found, console_report, as_json=as_json)
    if as_json:
        warn(unreplayed(found))


def _write_plot(path: Path, write: Callable[[Path], None]) -> None:
    try:
        write(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path} cannot be written: {error}; name a PNG in an existing folder.") from error
