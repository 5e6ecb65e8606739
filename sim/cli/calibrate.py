"""`servecast calibrate`: a hardware profile fitted to measured runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.measured import OnlyKnownArgs, RunFiles, read_runs
from sim.cli.options import Gpu, Json, print_json, warn
from sim.cli.progress import progress_bar
from sim.outputs import check_apart, check_writable

if TYPE_CHECKING:
    from sim.measure.calibrate import Calibration

app = typer.Typer(add_completion=False)
PARTS = {"before": "before", "fitted": "after, fitted to", "held_out": "after, held out"}


@app.command(cls=EngineCommand)
def calibrate(
    ctx: typer.Context,
    *,
    runs: RunFiles,
    gpu: Gpu,
    out: Annotated[Path, typer.Option(help="Write the calibrated profile to this YAML.", show_default=False)],
    only_known_args: OnlyKnownArgs = False,
    as_json: Json = False,
) -> None:
    """Fit a hardware profile to measured runs, and say whether it helps on runs that it did not see.

    A handful of factors are fitted, for all models alike: efficiencies, launches, host and front end. Choose runs that
    visit the batch sizes you care about.
    """
    from sim import api
    from sim.specs.hardware import profile_file

    check_apart({"--out": out}, (*runs, profile_file(gpu), *engine_flags(ctx).files))
    check_writable(out, "--out")
    measured = read_runs(ctx, runs, gpu)
    with progress_bar("fitting") as progress:
        calibration = api.calibrate(measured, gpu, only_known_args=only_known_args, progress=progress)
    calibration.write(out)
    if as_json:
        print_json(calibration.to_json() | {"compared": _figures(calibration)})
    else:
        typer.echo(_report(calibration))
    warn((f"{calibration.verdict}. The profile is in {out}.",))


def _figures(calibration: "Calibration") -> dict[str, dict[str, dict[str, float]]]:
    """By run and metric: measured, and predicted before and after; latencies in ms."""
    return {
        run: {name: figure._asdict() for name, figure in figures.items()}
        for run, figures in calibration.compared.items()
    }


def _report(calibration: "Calibration") -> str:
    from sim.report.tables import aligned
    from sim.report.validation import SHOWN

    metrics = tuple(calibration.errors["before"])
    errors = [(label, *(calibration.errors[part].get(metric) for metric in metrics)) for part, label in PARTS.items()]
    scales = [(name, f"x {factor:.3f}") for name, factor in calibration.scales.items()]
    title = f"{calibration.base}, {len(calibration.runs)} runs"
    shown = [
        (run, name, *figures[name])
        for run, figures in calibration.compared.items()
        for name in SHOWN
        if name in figures
    ]
    figures = aligned(("run", "ms, tok/s, blocks", "measured", "before", "after"), shown)
    tables = (figures, aligned(("MAPE %", *metrics), errors), aligned(("factor", ""), scales))
    return "\n\n".join((title, *tables))
