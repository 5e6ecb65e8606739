"""`servecast calibrate`: a hardware profile fitted to measured runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.measured import AsGiven, OnlyKnownArgs, RunFilesOrNone, read_runs
from sim.cli.options import Gpu, Json, Report, print_json, warn
from sim.cli.progress import progress_bar
from sim.errors import ConfigError
from sim.outputs import check_apart, check_writable, writing

if TYPE_CHECKING:
    from sim.measure.calibrate import Beside, Calibration
    from sim.measure.calibrate_kernels import KernelCalibration
    from sim.report.tables import Table

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
    as_given: AsGiven = False,
    report: Report = None,
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
    check_apart({"--out": out, "--report": report}, (*runs, profile_file(gpu), *engine_flags(ctx).files))
    check_writable(out, "--out")
    if report:
        check_writable(report, "--report")
    measured = read_runs(ctx, runs, gpu, as_given=as_given) if runs else ()
    if kernels is not None:
        by_kernels = api.calibrate(measured, gpu, kernels=kernels, only_known_args=only_known_args)
        _keep(by_kernels, by_kernels.title, _kernel_tables(by_kernels), out, report, as_json=as_json)
        return
    with progress_bar("fitting") as progress:
        calibration = api.calibrate(measured, gpu, only_known_args=only_known_args, progress=progress)
    num_runs = f"{len(calibration.runs)} runs"
    _keep(calibration, num_runs, _tables(calibration), out, report, as_json=as_json)


def _keep(
    found: "Calibration | KernelCalibration",
    what: str,
    tables: "list[Table]",
    out: Path,
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    """Writes the profile and the page, and prints what was found; `what` it was fitted to."""
    from sim.report.page.measured import calibration_page
    from sim.report.page.render import write_page

    title = f"{found.base}, {what}"
    found.write(out)
    if report:
        with writing(report, "--report") as place:
            write_page(place, calibration_page(title, found.verdict, tables))
    if as_json:
        print_json(found.to_json() | {"compared": _figures(found.compared)})
    else:
        typer.echo("\n\n".join((title, *map(str, tables))))
    warn((f"{found.verdict}. The profile is in {out}.",))


def _figures(compared: "Mapping[str, Mapping[str, Beside]]") -> dict[str, dict[str, dict[str, float]]]:
    """By run and metric: measured, and predicted before and after; latencies in ms."""
    return {run: {name: figure._asdict() for name, figure in figures.items()} for run, figures in compared.items()}


def _tables(calibration: "Calibration") -> "list[Table]":
    from sim.report.tables import Table

    metrics = tuple(calibration.errors["before"])
    errors = [(label, *(calibration.errors[part].get(metric) for metric in metrics)) for part, label in PARTS.items()]
    return [
        _figures_table(calibration.compared),
        Table(("MAPE %", *metrics), errors),
        _factors_table("factor", calibration.scales),
    ]


def _kernel_tables(calibration: "KernelCalibration") -> "list[Table]":
    from sim.report.tables import Table

    header = ("calls held out", "of", "before: median %", "P90 %", "after: median %", "P90 %", "other TP: median %")
    rows = [
        (name, one.num_calls, *one.before, *one.held_out, one.ranks_left_out)
        for name, one in calibration.operators.items()
    ]
    compared = [_figures_table(calibration.compared)] if calibration.compared else []
    return [*compared, Table(header, rows), _factors_table(f"beside {calibration.base}", calibration.card)]


def _figures_table(compared: "Mapping[str, Mapping[str, Beside]]") -> "Table":
    from sim.report.tables import Table
    from sim.report.validation import SHOWN

    rows = [(run, name, *figures[name]) for run, figures in compared.items() for name in SHOWN if name in figures]
    return Table(("run", "ms, tok/s, blocks", "measured", "before", "after"), rows)


def _factors_table(title: str, factors: "Mapping[str, float]") -> "Table":
    from sim.report.tables import Table

    return Table((title, ""), [(name, f"x {factor:.3f}") for name, factor in factors.items()])
