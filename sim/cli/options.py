"""Options that several commands share, and their output: results to stdout, messages to stderr."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sim.cli import completion
from sim.errors import ConfigError
from sim.specs.sampling import Sampling

if TYPE_CHECKING:
    from sim.specs.hardware import HardwareProfile
    from sim.workload.trace import Trace as Requests

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A catalogue name, a Hugging Face id, or a path to a folder or config.json.",
        show_default=False,
        autocompletion=completion.complete_model,
    ),
]
Gpu = Annotated[
    str,
    typer.Option(
        help="A GPU of `servecast gpus`, or the path of a YAML profile.",
        show_default=False,
        autocompletion=completion.gpu_names,
    ),
]
Price = Annotated[
    float | None,
    typer.Option(help="USD per GPU hour, in place of the price in the profile of the GPU.", show_default=False),
]
Trace = Annotated[
    str,
    typer.Option(
        help="A trace file, a workload's YAML, a bundled one by name (chat, agentic, ...), or - for standard input.",
        show_default=False,
        autocompletion=completion.trace_names,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="Where a table of any columns has a trace's fields: arrival=COLUMN[:s|ms|us|ns],prompt=COLUMN,output=COLUMN[,session=COLUMN,...].",
        metavar="FIELD=COLUMN,...",
        show_default=False,
    ),
]
RateScale = Annotated[float, typer.Option(help="Divide arrival times by this: 2 doubles the request rate.")]
RequestRate = Annotated[
    float | None,
    typer.Option(
        help="Requests a second, in the trace's own pattern; `inf` sends all at once.",
        show_default=False,
    ),
]
Limit = Annotated[int | None, typer.Option(help="Keep only the first requests.")]
Slos = Annotated[
    list[str] | None,
    typer.Option(
        "--slo", help="A limit such as ttft_p99=500ms; any percentile of ttft, tpot, itl, e2el.", show_default=False
    ),
]
Replicas = Annotated[
    int | None, typer.Option(help="Equal servers behind a router, 1 when absent; with -dp each has so many engines.")
]
Fleet = Annotated[
    Path | None,
    typer.Option(
        help="A YAML of pools of unlike servers, and their router, instead of --replicas.", show_default=False
    ),
]
ROUTER = "How requests are shared out to replicas: a name such as llm_d, or llm_d:queue=2,prefix=3"
GivenRouter = Annotated[
    str | None, typer.Option(help=f"{ROUTER}; least_loaded when absent.", autocompletion=completion.router_names)
]
KVStore = Annotated[
    str | None,
    typer.Option(
        help="A store of KV that replicas share: capacity_gib=1024,bandwidth_gb_s=50,lookup_ms=1,chunk_us=100,chunk_tokens=256,min_retrieve_tokens=0.",
        show_default=False,
    ),
]
KVPull = Annotated[
    str | None,
    typer.Option(
        help="Replicas pull prefixes from each other: kv_recompute_threshold=64,via=gpu, or via=host.",
        show_default=False,
    ),
]
StepTimes = Annotated[Path | None, typer.Option(help="A YAML of step times, instead of the roofline.")]
Composition = Literal["additive", "two_pass", "max"]  # that of sim.steptime.roofline, without loading it
HowTimed = Annotated[
    Composition | None, typer.Option("--composition", help="How mixed steps are timed, additive when absent.")
]
HowSampled = Annotated[
    Sampling | None,
    typer.Option(
        "--sampling", help="What requests ask of the sampler: the checkpoint's default, or greedy (temperature 0)."
    ),
]
ExpertRouting = Annotated[
    Literal["skewed", "mild", "uniform", "balanced"] | None,  # that of sim.steptime.expert_routing, without loading it
    typer.Option(
        "--expert-routing",
        help="How tokens spread over experts: skewed as by text (when absent), mild as by random tokens, uniform, or balanced.",
    ),
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help="How drafts of --speculative-config fare: a mean acceptance length (2.6), or rates by position (0.7,0.5,0.3).",
        metavar="LENGTH|RATES",
    ),
]
Report = Annotated[Path | None, typer.Option(help="Write a page to this HTML file.", show_default=False)]
UNMET = 3  # exit status: answered, and what was asked for cannot be had
Intervals = Annotated[
    bool,
    typer.Option("--intervals/--no-intervals", help="Replay also with step times as short and as long as they may be."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]


def given_trace(trace: str, limit: int | None, seed: int = 0, columns: str | None = None) -> "Requests":
    """The first requests of a trace; notes on what its file leaves open go to stderr."""
    from sim.workload.readers import read_trace

    found = read_trace(trace, limit=limit, seed=seed, columns=columns)
    warn(found.notes)
    return found


def given_stream(trace: str, limit: int | None, seed: int = 0, columns: str | None = None) -> "Iterator[Requests]":
    """The same in parts, as they are asked for; notes go to stderr when nobody asks for more."""
    from sim.workload.parts import trace_parts

    notes: tuple[str, ...] = ()
    try:
        for part in trace_parts(trace, limit=limit, seed=seed, columns=columns):
            notes = part.notes
            yield part
    finally:
        warn(notes)


def model_files(model: str | None) -> tuple[Path, ...]:
    """What a model given as a path is read from."""
    return (Path(model), Path(model, "config.json")) if model else ()


def priced(gpu: str, usd_per_hour: float | None) -> "str | HardwareProfile":
    """The GPU, at that price where one is given."""
    from sim.specs.hardware import load_gpu

    return gpu if usd_per_hour is None else load_gpu(gpu).at_price(usd_per_hour)


def print_json(result: Mapping[str, Any]) -> None:
    """One JSON object on stdout; numbers JSON cannot hold are errors."""
    typer.echo(json.dumps(result, indent=2, allow_nan=False))


def print_answer(answer: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str], *, as_json: bool) -> None:
    """The answer on stdout, as JSON or as text."""
    if as_json:
        print_json(answer)
    else:
        typer.echo(text(answer))


def warn(sentences: Iterable[str]) -> None:
    """Each sentence on a line of stderr."""
    for sentence in sentences:
        typer.echo(f"servecast: {sentence}", err=True)


def parsed_acceptance(text: str | None) -> float | tuple[float, ...] | None:
    """One number, or several with commas. Raises ConfigError for anything else."""
    if text is None:
        return None
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        raise ConfigError(
            f"--acceptance must be a mean acceptance length such as 2.6, or rates such as 0.7,0.5,0.3, got {text!r}."
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers
