"""`servecast compare RESULT RESULT`: finished runs side by side, and what is asserted of them."""

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import Json, print_json, warn

app = typer.Typer(add_completion=False)
FAILED = 1  # exit status: an assertion does not hold


@app.command()
def compare_results(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULT...",
            help="Folders of `simulate --out`, their summary.json, or JSON of `vllm bench serve --save-result`.",
            show_default=False,
        ),
    ] = None,
    *,
    baseline: Annotated[
        Path | None,
        typer.Option(help="A result that the others are held against; the first one when absent.", show_default=False),
    ] = None,
    asserts: Annotated[
        list[str] | None,
        typer.Option(
            "--assert",
            metavar="CONDITION",
            help="What must hold of each result, such as 'p99_ttft_ms<500', 'p99_ttft_ms<0.5s' or, against the baseline, 'p99_ttft_ms<=1.05x'.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for summary.json, the table as CSV, and a plot of the latencies.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs, measured or simulated: every figure, and whether it differs by more than noise.

    Exit status 1: an assertion does not hold.
    """
    from sim.measure.side_by_side import compare_results as compared
    from sim.report.side_by_side import check_side_by_side_folder

    if out:
        check_side_by_side_folder(out)
    found = compared(results or (), baseline=baseline, asserts=asserts or ())
    if out:
        found.write(out)
    if as_json:
        print_json(found.summary)
    else:
        typer.echo(str(found))
    warn(one.text for one in found.judged)
    if found.failed:
        raise typer.Exit(FAILED)
