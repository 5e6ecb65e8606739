"""`servecast trace slice`, `merge` and `anonymise`: a trace made of others."""

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import trace_names
from sim.cli.options import Columns, warn
from sim.cli.trace_shared import AsJson, Seed, Source, Target, check_target, keep
from sim.errors import ConfigError
from sim.workload.anonymise import anonymise
from sim.workload.merge import merge
from sim.workload.readers import read_trace
from sim.workload.slice import slice_trace


def slice_command(
    source: Source,
    target: Target,
    from_s: Annotated[
        float | None, typer.Option(help="Requests that arrive from this time of the trace on.", show_default=False)
    ] = None,
    to_s: Annotated[
        float | None, typer.Option(help="Requests that arrive before this time of the trace.", show_default=False)
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first of these.", show_default=False)] = None,
    whole_sessions: Annotated[
        bool,
        typer.Option(
            "--whole-sessions/--cut-sessions",
            help="Sessions that begin in the slice, whole, or what lies in the slice.",
        ),
    ] = False,
    columns: Columns = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the requests of a part of a trace, at the times that they have."""
    if from_s is None and to_s is None and limit is None:
        raise ConfigError("a slice has --from-s, --to-s or --limit, got none; `servecast trace convert` writes all.")
    check_target(target, source)
    trace = read_trace(source, seed=seed, columns=columns)
    keep(
        slice_trace(trace, from_s=from_s, to_s=to_s, limit=limit, whole_sessions=whole_sessions),
        target,
        as_json=as_json,
    )


def merge_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE... FILE", help="Traces, and the file that is written.", autocompletion=trace_names
        ),
    ],
    from_zero: Annotated[bool, typer.Option("--from-zero", help="Have each trace begin at 0 s.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write the requests of several traces on one clock, with ids, sessions and prompts kept apart."""
    *given, target = sources
    if not given:
        raise ConfigError(f"traces are merged into a file, got {target} alone; name the traces before the file.")
    check_target(Path(target), *given)
    keep(merge([read_trace(source, seed=seed) for source in given], from_zero=from_zero), Path(target), as_json=as_json)


def anonymise_command(
    source: Source,
    target: Target,
    round_tokens: Annotated[int, typer.Option(help="Round lengths to multiples of this.")] = 1,
    columns: Columns = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order in which names are numbered.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a trace that loads a server just so, without the names of requests, sessions, adapters and contents."""
    check_target(target, source)
    trace = read_trace(source, columns=columns)
    warn(trace.notes)
    keep(anonymise(trace, seed=seed, round_tokens=round_tokens), target, as_json=as_json)
