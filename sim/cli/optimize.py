"""`servecast optimize`: the engine arguments that serve a trace best."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.options import UNMET, GivenRouter, KVPull, KVStore, RateScale, RequestRate, print_answer, warn
from sim.cli.shared_flags import SharedFlags, with_shared_flags
from sim.errors import listed
from sim.metrics.goals import GOALS

if TYPE_CHECKING:
    from sim.search.runner import OnProgress
    from sim.search.runner import Progress as SearchProgress

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
@with_shared_flags
def optimize(
    ctx: typer.Context,
    shared: SharedFlags,
    *,
    objective: Annotated[
        str, typer.Option(help=f"{listed(list(GOALS), 'or')}; several with commas give a Pareto set.")
    ] = "throughput",
    space: Annotated[
        Path | None, typer.Option(help="A YAML of knobs to search; derived from the trace when absent.")
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(help="Search this too, as in quantization=null,fp8 or kv_cache_dtype=null,fp8; repeatable."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="Search also how to lay out so many GPUs: tensor parallel and replicas, of a fleet those of each pool."
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Candidates to try at most.")] = 200,
    seed: Annotated[
        int, typer.Option(help="For slices and proposals; the same seed gives the same answer.", min=0)
    ] = 0,
    scorer: Annotated[
        Literal["simulated", "analytic"], typer.Option(help="Replay the trace, or trust the design's formulas.")
    ] = "simulated",
    parameters: Annotated[
        Path | None,
        typer.Option(help="A YAML of the autotuning design's constants, for its formulas, bounds and advice."),
    ] = None,
    request_rate: RequestRate = None,
    rate_scale: RateScale = 1.0,
    router: GivenRouter = None,
    fleet: Annotated[
        Path | None,
        typer.Option(help="A YAML of pools of servers: search their replicas, arguments, router and decider."),
    ] = None,
    kv_store: KVStore = None,
    kv_pull: KVPull = None,
    executor: Annotated[
        Literal["serial", "process", "ray"], typer.Option(help="Where candidates are tried.")
    ] = "process",
    workers: Annotated[
        int | None, typer.Option(help="Processes at most, one a core when absent; short searches need none.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Keep all trials in this SQLite file; else in the cache, until done.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the answer to this folder: JSON, CSV and plots.")] = None,
) -> None:
    """Find the engine arguments that serve a trace best, and say why and how sure that is.

    Exit status 3: no candidate keeps all limits; the answer is then the nearest.
    """
    import sim
    from sim.report.search import optimization_text
    from sim.report.search_folder import VERIFY, check_answer_folder, write_optimization
    from sim.specs.autotuning import AutotuningParameters

    if out:
        check_answer_folder(out)
    arguments = shared.arguments(engine_flags(ctx), {"--out": out, "--store": store}, space, fleet, parameters)
    with _progress() as progress:
        result = sim.optimize(
            **arguments,
            objective=objective,
            space=space,
            knobs=knob or (),
            gpus=gpus,
            trials=trials,
            seed=seed,
            scorer=scorer,
            parameters=AutotuningParameters.read(parameters) if parameters else None,
            request_rate=request_rate,
            rate_scale=rate_scale,
            router=router,
            fleet=fleet,
            kv_store=kv_store,
            kv_pull=kv_pull,
            executor_name=executor,
            workers=workers or os.cpu_count() or 1,
            store=store,
            resume=True,
            bench_dataset=(out or Path()) / VERIFY,
            progress=progress,
            notify=lambda sentence: warn([sentence]),
        )
    if out:
        tables = {"candidates": result.candidates, "pareto": result.pareto, "sensitivity": result.sensitivity}
        write_optimization(out, result.summary, tables, result.load.write)
    print_answer(result.summary, optimization_text, as_json=shared.as_json)
    warn([f"{result.summary['evaluated']:,} candidates tried{f'; the answer is in {out}' if out else ''}."])
    if not result.summary["feasible"]:
        raise typer.Exit(UNMET)


@contextmanager
def _progress() -> Iterator["OnProgress | None"]:
    """A bar a phase with ETA, best so far and infeasible count; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def show(progress: "SearchProgress") -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bar.add_task(progress.phase, note="")
            best = "" if progress.best is None else f"best {progress.best:,.4g}"
            note = f"{best}, {progress.num_infeasible:,} infeasible" if progress.num_infeasible else best
            bar.update(tasks[progress.phase], completed=progress.done, total=progress.total, note=note)

        yield show
