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


def read_runs(ctx: typer.Context, files: list[Path], gpu: str | None) -> "tuple[Run, ...]":
    """The runs of these files; the GPU and this call's engine flags describe the server of those that name none."""
    from sim import api

    parsed = engine_flags(ctx)
    warn(parsed.warnings)
    runs = api.read_measured(files, model=parsed.model, gpu=gpu, engine=parsed.engine, vllm_version=parsed.vllm_version)
    warn(run.note for run in runs if run.note and run.workload.kind == "requests")
    return runs
