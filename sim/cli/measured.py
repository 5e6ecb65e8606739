"""Measured runs, as `servecast validate` and `servecast calibrate` take them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.completion import complete_file
from sim.cli.engine_flags import engine_flags
from sim.cli.options import warn

if TYPE_CHECKING:
    from sim.measure.runs import Run

_RUN_FILES = typer.Argument(
    metavar="RUNS.json...",
    help="Measured runs, or JSON of vllm bench serve --save-result --save-detailed.",
    show_default=False,
    autocompletion=complete_file,
)
RunFiles = Annotated[list[Path], _RUN_FILES]
RunFilesOrNone = Annotated[list[Path] | None, _RUN_FILES]
OnlyKnownArgs = Annotated[
    bool, typer.Option("--only-known-args", help="Leave out runs whose engine arguments are unknown.")
]
AsGiven = Annotated[
    bool,
    typer.Option(
        "--as-given", help="Leave runs as their file has them, whatever their source says elsewhere of their servers."
    ),
]


def read_runs(ctx: typer.Context, files: list[Path], gpu: str | None, *, as_given: bool) -> "tuple[Run, ...]":
    """The runs of these files; the GPU and this call's engine flags describe the server of those that name none."""
    from sim import api
    from sim.measure.published import completed

    parsed = engine_flags(ctx)
    warn(parsed.warnings)
    given = api.read_measured(
        files, model=parsed.model, gpu=gpu, engine=parsed.engine, vllm_version=parsed.vllm_version, as_given=True
    )
    warn(run.note for run in given if run.note and run.workload.kind == "requests")
    if as_given:
        return given
    runs = completed(given)
    num_changed = sum(one != other for one, other in zip(given, runs, strict=True))
    if num_changed:
        have = (
            "1 run has what its source says elsewhere of its server"
            if num_changed == 1
            else (f"{num_changed} runs have what their source says elsewhere of their servers")
        )
        warn([f"{have} (InferenceX's scripts); --as-given leaves that out."])
    return runs
