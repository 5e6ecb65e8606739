"""`servecast compare`: one trace behind several routers, or with engine arguments varied one at a time, side by side; or finished runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli import completion
from sim.cli.client_flags import NumUsers, ThinkTime
from sim.cli.compare_results import app as results_app
from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.options import Fleet, RateScale, Replicas, RequestRate, print_json, warn
from sim.cli.progress import progress_bar
from sim.cli.shared_flags import SharedFlags, with_shared_flags
from sim.inputs import is_there

app = typer.Typer(add_completion=False)
OF_RESULTS = ("--assert", "--baseline")


class CompareCommand(EngineCommand):
    """Two commands under one name: where finished runs are named, they are compared, and nothing is simulated."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if _are_results(args):
            return typer.main.get_command(results_app).make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _are_results(args: Sequence[str]) -> bool:
    """Two names, for a model has one; or one of something that is there, while a trace to simulate is not given."""
    names = [word for word in args[:2] if not word.startswith("-")]
    given = {word.partition("=")[0] for word in args}
    is_one = names == args[:1] and "--trace" not in given and is_there(Path(names[0]))
    return bool(given.intersection(OF_RESULTS)) or len(names) == 2 or (bool(names) and is_one)


@app.command(cls=CompareCommand)
@with_shared_flags
def compare(
    ctx: typer.Context,
    shared: SharedFlags,
    *,
    router: Annotated[
        list[str] | None,
        typer.Option(
            help="A router to compare, once for each: a name such as llm_d, or llm_d:queue=2,prefix=3.",
            show_default=False,
            autocompletion=completion.router_names,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="An engine argument whose choices to compare, once for each: scheduling_policy, or max_num_seqs=64,256."
            " All that no vLLM has, where neither it nor --router is given.",
            show_default=False,
            autocompletion=completion.varied_names,
        ),
    ] = None,
    replicas: Replicas = None,
    fleet: Fleet = None,
    request_rate: RequestRate = None,
    rate_scale: RateScale = 1.0,
    users: NumUsers = None,
    think_time: ThinkTime = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what routers draw, as for simulate.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for summary.json, the table as CSV, and a plot.", show_default=False)
    ] = None,
) -> None:
    """Replay one trace behind several routers, or with engine arguments varied one at a time; a row for each.

    Given results instead, `servecast compare DIR bench.json` has them side by side; `servecast compare . --help` has the options of that.
    """
    from sim.comparison import compare

    if out:
        from sim.report.comparison_folder import check_comparison_folder

        check_comparison_folder(out)
    arguments = shared.arguments(engine_flags(ctx), {"--out": out}, fleet, seed=seed)
    with progress_bar("simulating") as progress:
        found = compare(
            **arguments,
            **_compared(router, vary),
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


def _compared(routers: list[str] | None, vary: list[str] | None) -> dict[str, Any]:
    """One router is that of all runs where arguments are varied."""
    if routers and vary and len(routers) == 1:
        return {"router": routers[0], "vary": vary}
    return {"routers": routers or None, "vary": vary or None}
