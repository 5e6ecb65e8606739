"""`servecast calibrate`: a hardware profile fitted to measured runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.measured import OnlyKnownArgs, RunFilesOrNone, read_runs
from sim.cli.options import Gpu, Json, print_json, warn
from sim.cli.progress import progress_bar
from sim.errors import ConfigError
from sim.outputs import check_apart, check_writable

if TYPE_CHECKING:
    from sim.measure.calibrate import Beside, Calibration
    from sim.measure.calibrate_kernels import KernelCalibration
    from sim.measure.runs import Run

app = typer.Typer(add_completion=False)
PARTS = {"before": "before", "fitted": "after, fitted to", "held_out": "after, held out"}


@app.command(cls=EngineCommand)
def calibrate(
    ctx: typer.Context,
    *,
    runs: RunFilesOrNone = None,
    gpu: Gpu,
    out: Annotated[Path, typer.Option(help="Write the calibrated profile to this YAML.", show_default=False)],
    kernels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Fit the operators to the layer profile in this folder; runs are compared, nothing is fitted to them.",
            show_default=False,
        ),
    ] = None,
    only_known_args: OnlyKnownArgs = False,
    as_json: Json = False,
) -> None:
    """Fit a hardware profile to measured runs, and say whether it helps on runs that it did not see.

    A handful of factors are fitted, for all models alike: efficiencies, launches, host and front end. Choose runs that
    visit the batch sizes you care about. With --kernels, operators are fitted to kernels that were measured on the GPU.
    """
    from sim import api
    from sim.specs.hardware import profile_file

    runs = runs or []
    if not runs and kernels is None:
        raise ConfigError("RUNS.json is missing; give measured runs, a layer profile (--kernels FOLDER), or both.")
    check_apart({"--out": out}, (*runs, profile_file(gpu), *engine_flags(ctx).files))
    check_writable(out, "--out")
    measured = read_runs(ctx, runs, gpu) if runs else ()
    if kernels is not None:
        _calibrate_kernels(kernels, gpu, measured, out, only_known_args=only_known_args, as_json=as_json)
        return
    with progress_bar("fitting") as progress:
        calibration = api.calibrate(measured, gpu, only_known_args=only_known_args, progress=progress)
    calibration.write(out)
    if as_json:
        print_json(calibration.to_json() | {"compared": _figures(calibration.compared)})
    else:
        typer.echo(_report(calibration))
    warn((f"{calibration.verdict}. The profile is in {out}.",))


def _calibrate_kernels(
    folder: Path, gpu: str, runs: "Sequence[Run]", out: Path, *, only_known_args: bool, as_json: bool
) -> None:
    from sim import api

    calibration = api.calibrate(runs, gpu, kernels=folder, only_known_args=only_known_args)
    calibration.write(out)
    if as_json:
        print_json(calibration.to_json() | {"compared": _figures(calibration.compared)})
    else:
        typer.echo(_kernels_report(calibration))
    warn((f"{calibration.verdict}. The profile is in {out}.",))


def _figures(compared: "Mapping[str, Mapping[str, Beside]]") -> dict[str, dict[str, dict[str, float]]]:
    """By run and metric: measured, and predicted before and after; latencies in ms."""
    return {run: {name: figure._asdict() for name, figure in figures.items()} for run, figures in compared.items()}


def _report(calibration: "Calibration") -> str:
    from sim.report.tables import aligned

    metrics = tuple(calibration.errors["before"])
    errors = [(label, *(calibration.errors[part].get(metric) for metric in metrics)) for part, label in PARTS.items()]
    scales = [(name, f"x {factor:.3f}") for name, factor in calibration.scales.items()]
    title = f"{calibration.base}, {len(calibration.runs)} runs"
    tables = (
        _figures_table(calibration.compared),
        aligned(("MAPE %", *metrics), errors),
        aligned(("factor", ""), scales),
    )
    return "\n\n".join((title, *tables))


def _kernels_report(calibration: "KernelCalibration") -> str:
    from sim.report.tables import aligned

    header = ("calls held out", "of", "before: median %", "P90 %", "after: median %", "P90 %", "other TP: median %")
    rows = [
        (name, one.num_calls, *one.before, *one.held_out, one.ranks_left_out)
        for name, one in calibration.operators.items()
    ]
    operators = aligned(header, rows)
    card = aligned(
        (f"beside {calibration.base}", ""), [(name, f"x {factor:.3f}") for name, factor in calibration.card.items()]
    )
    compared = (_figures_table(calibration.compared),) if calibration.compared else ()
    return "\n\n".join((f"{calibration.base}, {calibration.title}", *compared, operators, card))


def _figures_table(compared: "Mapping[str, Mapping[str, Beside]]") -> str:
    from sim.report.tables import aligned
    from sim.report.validation import SHOWN

    rows = [(run, name, *figures[name]) for run, figures in compared.items() for name in SHOWN if name in figures]
    return aligned(("run", "ms, tok/s, blocks", "measured", "before", "after"), rows)
