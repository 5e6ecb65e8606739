"""`servecast explain`: what limits a run, why its P99 is what it is, what would help; or the life of one request."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.layerwise_flags import LayerwiseFlags
from sim.cli.options import Json, Report, print_json, warn
from sim.cli.progress import progress_bar
from sim.cli.run_flags import RunFlags
from sim.cli.shared_flags import SharedFlags, with_shared_flags
from sim.errors import ConfigError
from sim.inputs import is_there
from sim.outputs import check_apart, check_writable, writing

if TYPE_CHECKING:
    from sim.api import Result

app = typer.Typer(add_completion=False)
folder_app = typer.Typer(add_completion=False)
Request = Annotated[
    str | None,
    typer.Option("--request", help="Tell the life of this request, by its name in the trace.", show_default=False),
]
Tries = Annotated[
    bool, typer.Option("--tries/--no-tries", help="Simulate each change that might help, and show what it gains.")
]


class ExplainCommand(EngineCommand):
    """Two commands under one name: where a folder of results is named, its run is explained."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        is_folder = {word.partition("=")[0] for word in args}.isdisjoint({"--trace", "--gpu", "--help"})
        if args and is_folder and not args[0].startswith("-"):
            if not is_there(Path(args[0])):
                raise ConfigError(
                    f"there is no {args[0]}; name a folder that `servecast simulate --out` wrote, or a model with --gpu and --trace."
                )
            return typer.main.get_command(folder_app).make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@app.command(cls=ExplainCommand)
@with_shared_flags
def explain(
    ctx: typer.Context,
    shared: SharedFlags,
    run: RunFlags,
    layerwise: LayerwiseFlags,
    *,
    request: Request = None,
    tries: Tries = True,
    report: Report = None,
) -> None:
    """Simulate a run, and explain it: what limits it, why its slowest requests are slow, and what would help, checked by trying.

    Given the folder of a run instead, `servecast explain DIR` explains that, and `servecast explain DIR r17` a request of it.
    """
    from sim import api

    _check_report(report, request)
    arguments = shared.arguments(engine_flags(ctx), {"--report": report}, run.fleet, seed=run.seed) | run.arguments()
    with progress_bar("simulating") as progress:
        result = api.simulate(**arguments, layerwise=layerwise.settings(), progress=progress)
    _print(result, request, tries=tries, report=report, as_json=shared.as_json)


@folder_app.command()
def explain_folder(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `simulate --out` wrote.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[REQUEST]", help="Tell the life of this request.", show_default=False)
    ] = None,
    *,
    request: Request = None,
    tries: Tries = True,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Explain a run of which the results are there: it is simulated again by the arguments in its summary.json."""
    from sim.explanation.from_folder import simulated_again

    _check_report(report, name or request)
    check_apart({"--report": report}, (folder,))
    with progress_bar("simulating") as progress:
        result = simulated_again(folder, progress)
    _print(result, name or request, tries=tries, report=report, as_json=as_json)


def _check_report(report: Path | None, request: str | None) -> None:
    if report and request is not None:
        raise ConfigError(
            "--report writes the page of a whole run, and one request is asked for; leave one of them out."
        )
    if report:
        check_writable(report, "--report")


def _print(result: "Result", request: str | None, *, tries: bool, report: Path | None, as_json: bool) -> None:
    from sim.explanation.explain import Explanation
    from sim.explanation.explain import explain as explained
    from sim.explanation.page import explained_page
    from sim.explanation.story import Story
    from sim.report.page.render import write_page

    found: Explanation | Story
    if request is not None:
        found = explained(result, request)
    else:
        with progress_bar("trying") as progress:
            found = explained(result, tries=tries, progress=progress)
        if report:
            with writing(report, "--report") as place:
                write_page(place, explained_page(result, found))
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))
    warn([f"{result.summary['confidence']['text']}."])
