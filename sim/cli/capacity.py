"""`servecast capacity`: how much traffic a deployment takes, and how many GPUs a given rate needs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.engine_flags import EngineCommand, chosen_model, engine_flags
from sim.cli.options import (
    ExpertRouting,
    Gpu,
    HowSampled,
    HowTimed,
    Intervals,
    Json,
    Limit,
    Model,
    Price,
    Router,
    Slos,
    StepTimes,
    Trace,
    check_timed,
    given_trace,
    model_files,
    priced,
    print_answer,
    warn,
)
from sim.outputs import check_apart

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
def capacity(
    ctx: typer.Context,
    *,
    model: Model = None,
    gpu: Gpu,
    price: Price = None,
    trace: Trace,
    slo: Slos = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", "--request-rate", help="Requests a second to serve: how many replicas and GPUs does it take?"
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(help="Equal servers behind a router.")] = 1,
    limit: Limit = None,
    router: Router = "least_loaded",
    step_time_model: StepTimes = None,
    composition: HowTimed = None,
    sampling: HowSampled = None,
    expert_routing: ExpertRouting = None,
    out: Annotated[Path | None, typer.Option(help="Write the answer to this folder: JSON, CSV and a plot.")] = None,
    intervals: Intervals = True,
    as_json: Json = False,
) -> None:
    """Find the highest request rate within limits on latency, and the GPUs that a given rate takes."""
    import sim
    from sim.report.search import capacity_text
    from sim.report.search_folder import VERIFY, check_answer_folder, write_capacity

    parsed = engine_flags(ctx)
    choices = {"--composition": composition, "--sampling": sampling, "--expert-routing": expert_routing}
    check_timed(step_time_model, choices)
    check_apart({"--out": out}, (*model_files(model), trace, gpu, step_time_model, *parsed.files))
    if out:
        check_answer_folder(out)
    warn(parsed.warnings)
    with _status() as on_probe:
        result = sim.capacity(
            chosen_model(model, parsed),
            priced(gpu, price),
            given_trace(trace, limit),
            slo=slo or (),
            rate=rate,
            replicas=replicas,
            engine=parsed.engine,
            vllm_version=parsed.vllm_version,
            limit=limit,
            router=router,
            composition=composition or "additive",
            sampling=sampling or "default",
            expert_routing=expert_routing or "skewed",
            step_time_model=step_time_model,
            intervals=intervals,
            bench_dataset=(out or Path()) / VERIFY,
            on_probe=on_probe,
        )
    if out:
        write_capacity(out, result.summary, result.curve, result.load.write if result.load else None)
    print_answer(result.summary, capacity_text, as_json=as_json)


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being tried."""
    from sim.search.store import ignore

    if not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console

    with Console(stderr=True).status("trying") as status:
        yield lambda words: status.update(f"trying {words}")
