"""Flags that say who sends the requests of a trace."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from sim.workload.trace import Trace

MaxConcurrency = Annotated[
    int | None,
    typer.Option(
        help="At most so many requests in flight, as `vllm bench serve`; the others wait and their clock starts when sent.",
        show_default=False,
    ),
]
NumUsers = Annotated[
    int | None,
    typer.Option(
        "--users",
        help="So many users send the requests, or sessions, one after the other; the trace's times do not count.",
        show_default=False,
    ),
]
ThinkTime = Annotated[
    str | None,
    typer.Option(
        help="Seconds between an answer and the user's next request: 5, or exponential:5 on average.",
        show_default=False,
    ),
]
OpenLoop = Annotated[
    bool, typer.Option("--open-loop", help="Send each request at its recorded time, whatever it would wait for.")
]

Clock = Annotated[
    Literal["engine", "client"],
    typer.Option(
        help="By whose clock latencies are: the engine's, or the client's, whom HTTP, tokenizing and streaming keep waiting besides.",
    ),
]


def said_of_clients(summary: Mapping[str, Any], trace: "Trace") -> Iterator[str]:
    """How late requests were sent, and a flag that changes nothing."""
    late = summary.get("sent_late")
    if late and late["requests"]:
        yield (
            f"{late['requests']:,} of {len(trace):,} requests waited for answers and were sent later than recorded: by"
            f" {late['mean_s']:,.3g} s on average over all, at most {late['max_s']:,.3g} s."
        )
    if summary["open_loop"] and trace.session_id is None and trace.stage is None:
        yield "--open-loop changes nothing here: the trace has neither sessions nor stages."
