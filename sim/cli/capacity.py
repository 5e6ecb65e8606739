"""`servecast capacity`: how much traffic a deployment takes, and how many GPUs a given rate needs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.options import Fleet, GivenRouter, KVPull, KVStore, Replicas, print_answer
from sim.cli.shared_flags import SharedFlags, with_shared_flags

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
@with_shared_flags
def capacity(
    ctx: typer.Context,
    shared: SharedFlags,
    *,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", "--request-rate", help="Requests a second to serve: how many replicas and GPUs does it take?"
        ),
    ] = None,
    replicas: Replicas = None,
    router: GivenRouter = None,
    fleet: Fleet = None,
    kv_store: KVStore = None,
    kv_pull: KVPull = None,
    pool: Annotated[str | None, typer.Option(help="The pool of --fleet that --rate sizes.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the answer to this folder: JSON, CSV and a plot.")] = None,
) -> None:
    """Find the highest request rate within limits on latency, and the GPUs that a given rate takes."""
    import sim
    from sim.report.search import capacity_text
    from sim.report.search_folder import VERIFY, check_answer_folder, write_capacity

    if out:
        check_answer_folder(out)
    arguments = shared.arguments(engine_flags(ctx), {"--out": out}, fleet)
    with _status() as on_probe:
        result = sim.capacity(
            **arguments,
            rate=rate,
            replicas=replicas,
            router=router,
            fleet=fleet,
            kv_store=kv_store,
            kv_pull=kv_pull,
            pool=pool,
            bench_dataset=(out or Path()) / VERIFY,
            on_probe=on_probe,
        )
    if out:
        write_capacity(out, result.summary, result.curve, result.load.write if result.load else None)
    print_answer(result.summary, capacity_text, as_json=shared.as_json)


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
