"""`servecast validate`: measured runs against their replay."""

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import gpu_names
from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.measured import AsGiven, OnlyKnownArgs, RunFiles, read_runs
from sim.cli.options import Composition, Intervals, Json, Report, print_answer, warn
from sim.cli.progress import progress_bar
from sim.outputs import check_apart, check_writable, writing

app = typer.Typer(add_completion=False)
BenchGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="The GPU, by name or YAML, in place of those that runs name; benchmarks of vLLM name none.",
        show_default=False,
        autocompletion=gpu_names,
    ),
]


@app.command(cls=EngineCommand)
def validate(
    ctx: typer.Context,
    *,
    runs: RunFiles,
    gpu: BenchGpu = None,
    only_known_args: OnlyKnownArgs = False,
    as_given: AsGiven = False,
    composition: Annotated[Composition, typer.Option(help="How mixed steps are timed.")] = "additive",
    seed: Annotated[int, typer.Option(help="For arrivals and lengths that are random.", min=0)] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Write measured against predicted to this PNG.", show_default=False)
    ] = None,
    report: Report = None,
    intervals: Intervals = True,
    as_json: Json = False,
) -> None:
    """Replay measured runs and report how far the forecast is off, by metric, GPU, model family and workload."""
    from sim import api
    from sim.report.page.measured import validation_page
    from sim.report.page.render import write_page
    from sim.report.validation import console_report, scatter_plot, unreplayed

    outputs = {"--plot": plot, "--report": report}
    check_apart(outputs, (*runs, gpu, *engine_flags(ctx).files))
    for option, path in outputs.items():
        if path:
            check_writable(path, option)
    measured = read_runs(ctx, runs, gpu, as_given=as_given)
    with progress_bar("replaying") as progress:
        validation = api.validate(
            measured,
            only_known_args=only_known_args,
            gpu=gpu,
            composition=composition,
            seed=seed,
            intervals=intervals,
            progress=progress,
        )
    found = validation.to_json()
    if plot:
        with writing(plot, "--plot") as place:
            scatter_plot(place, found)
    if report:
        with writing(report, "--report") as place:
            write_page(place, validation_page(found))
    print_answer(found, console_report, as_json=as_json)
    if as_json:
        warn(unreplayed(found))
