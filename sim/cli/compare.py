"""`servecast compare`: one fleet and one trace behind several routers, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from sim.cli import completion
from sim.cli.client_flags import NumUsers, ThinkTime
from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.options import Fleet, RateScale, Replicas, RequestRate, print_json, warn
from sim.cli.progress import progress_bar
from sim.cli.shared_flags import SharedFlags, with_shared_flags

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
@with_shared_flags
def compare(
    ctx: typer.Context,
    shared: SharedFlags,
    *,
    router: Annotated[
        list[str],
        typer.Option(
            help="A router to compare, once for each: a name such as llm_d, or llm_d:queue=2,prefix=3.",
            show_default=False,
            autocompletion=completion.router_names,
        ),
    ],
    replicas: Replicas = None,
    fleet: Fleet = None,
    request_rate: RequestRate = None,
    rate_scale: RateScale = 1.0,
    users: NumUsers = None,
    think_time: ThinkTime = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what routers draw, as for simulate.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for summary.json, routers.csv and routers.png.", show_default=False)
    ] = None,
) -> None:
    """Replay one trace behind several routers; a row for each."""
    from sim.comparison import compare

    if out:
        from sim.report.comparison_folder import check_comparison_folder

        check_comparison_folder(out)
    arguments = shared.arguments(engine_flags(ctx), {"--out": out}, fleet, seed=seed)
    with progress_bar("simulating") as progress:
        found = compare(
            **arguments,
            routers=router,
            replicas=replicas,
            fleet=fleet,
            request_rate=request_rate,
            rate_scale=rate_scale,
            users=users,
            think_time=think_time,
            seed=seed,
            progress=progress,
        )
    if out:
        found.write(out)
    if shared.as_json:
        print_json(found.summary)
    else:
        typer.echo(str(found))
    first = next(iter(found.results.values()))
    place = f"; results are in {out}" if out else ""
    warn([f"each run by itself: {first.summary['confidence']['text']}{place}."])
