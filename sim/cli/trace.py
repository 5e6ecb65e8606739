"""`servecast trace`: look into a trace, convert, cut, merge or anonymise it, or generate one."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.completion import workload_names
from sim.cli.options import Columns, Limit, Report, warn
from sim.cli.shared_flags import with_shared_flags
from sim.cli.trace_rewrites import anonymise_command, merge_command, slice_command
from sim.cli.trace_shared import AsJson, Reading, Source, Target, check_target, described_rows, keep, lines
from sim.errors import ConfigError
from sim.outputs import check_apart, check_writable, writing
from sim.report.tables import aligned
from sim.workload.arrivals import FORMS as FORMS_OF_ARRIVALS
from sim.workload.arrivals import Arrivals, Gamma, parse_arrivals
from sim.workload.describe import TraceDescription, describe
from sim.workload.fit import fit
from sim.workload.generate import generate
from sim.workload.inspection import inspect as inspect_trace
from sim.workload.lengths import FORMS, Geometric, parse_lengths
from sim.workload.named import find_workload
from sim.workload.readers import read_trace
from sim.workload.source import STDIN, find_trace
from sim.workload.spec import Workload, WorkloadSpec
from sim.workload.spec_file import changed, to_yaml
from sim.workload.waits import Exponential

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Inspect, convert, generate, fit, slice, merge and anonymise request traces.",
)


@app.command()
@with_shared_flags
def inspect(
    source: Source,
    *,
    reading: Reading,
    out: Annotated[
        Path | None, typer.Option(help="Draw rates, lengths and hit rates to this PNG.", show_default=False)
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Print counts, rates over time, lengths, sessions, and how much of its prompts caches of several sizes find again."""
    from sim.report.plots import save
    from sim.report.trace import inspection_rows, trace_figure

    outputs = {"--out": out, "--report": report}
    check_apart(outputs, (find_trace(source),))
    for option, path in outputs.items():
        if path:
            check_writable(path, option)
    trace = reading.trace(source)
    warn(trace.notes)
    described, inspected = describe(trace), inspect_trace(trace)
    rows = described_rows(described) | inspection_rows(inspected, described.mean_rate_rps)
    if out:
        with writing(out, "--out") as file:
            save(trace_figure(trace, title=f"{trace.source}, {len(trace):,} requests"), file)
    if report:
        from sim.report.page.render import write_page
        from sim.report.page.trace import trace_page

        with writing(report, "--report") as file:
            write_page(file, trace_page(trace, rows))
    typer.echo(json.dumps(asdict(described) | asdict(inspected)) if as_json else lines(rows))


@app.command()
@with_shared_flags
def convert(
    source: Source,
    target: Target,
    *,
    reading: Reading,
    as_json: AsJson = False,
) -> None:
    """Write a trace of any format in the native one."""
    check_target(target, source)
    keep(reading.trace(source), target, as_json=as_json)


@app.command("generate")
def generate_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[WORKLOAD] FILE",
            help="A workload to start from, a YAML file, by name, or -, and the trace to write: .csv, .jsonl or .parquet, also .csv.gz and .jsonl.gz.",
            autocompletion=workload_names,
        ),
    ],
    profile: Annotated[
        str | None, typer.Option(help="Start from a named workload, as WORKLOAD does.", autocompletion=workload_names)
    ] = None,
    num_requests: Annotated[int | None, typer.Option("-n", "--num-requests", help="How many requests [1000].")] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second, `inf` for all at once [10].")] = None,
    arrivals: Annotated[str | None, typer.Option(help=f"How they arrive: {FORMS_OF_ARRIVALS} [gamma:1].")] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Gamma shape of the gaps; 1 is Poisson, less is burstier [1].")
    ] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help=f"New prompt tokens: {FORMS} [1024].")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Output tokens, in the same form [128].")] = None,
    prefix_tokens: Annotated[int | None, typer.Option(help="Shared tokens before each prompt [0].")] = None,
    num_prefixes: Annotated[int | None, typer.Option(help="How many different shared prefixes [1].")] = None,
    mean_turns: Annotated[float | None, typer.Option(help="Mean number of turns a conversation [1].")] = None,
    turn_gap_s: Annotated[
        float | None, typer.Option(help="Mean seconds between the turns of a conversation [30].")
    ] = None,
    hash_block_size: Annotated[int | None, typer.Option(help="Prompt tokens for each of `hash_ids` [16].")] = None,
    lora_modules: Annotated[
        list[str] | None, typer.Option(help="A LoRA adapter; each conversation asks for one of those given [none].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same trace.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a synthetic trace, that of a workload or one of 1,000 requests: arrivals as `vllm bench serve` makes them or others,
    drawn lengths, shared prefixes, conversations. Flags win over the workload.
    """
    workload, target = _workload_and_target(files, profile)
    given = {
        "num_requests": num_requests,
        "request_rate": rate,
        "arrivals": _arrivals(arrivals, burstiness),
        "prompt_tokens": None if prompt_tokens is None else parse_lengths(prompt_tokens),
        "output_tokens": None if output_tokens is None else parse_lengths(output_tokens),
        "prefix_tokens": prefix_tokens,
        "num_prefixes": num_prefixes,
        "turns": None if mean_turns is None else Geometric(mean_turns),
        "turn_gap_s": None if turn_gap_s is None else Exponential(turn_gap_s),
        "hash_block_size": hash_block_size,
        "lora_modules": None if lora_modules is None else tuple(lora_modules),
    }
    keep(generate(_changed(workload, given), seed), target, as_json=as_json)


@app.command("fit")
def fit_command(
    source: Source,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The workload that is written, in YAML.", show_default=False)
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="The same as FILE.", show_default=False)] = None,
    columns: Columns = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Write a workload that is like a trace, and print figures of the trace beside those of what is drawn from it."""
    target = _one_of(file, out)
    check_target(target, source)
    trace = read_trace(source, columns=columns, limit=limit)
    warn(trace.notes)
    workload = fit(trace)
    with writing(target) as written:
        written.write_text(to_yaml(workload), encoding="utf-8")
    typer.echo(f"Wrote {target}.", err=True)
    own, drawn = describe(trace), describe(generate(workload))
    both = {"trace": asdict(own), "drawn": asdict(drawn)}
    typer.echo(json.dumps(both) if as_json else _beside(own, drawn))


app.command("slice")(slice_command)
app.command("merge")(merge_command)
app.command("anonymise")(anonymise_command)


def _one_of(file: Path | None, out: Path | None) -> Path:
    """Raises ConfigError unless one is given."""
    given = [path for path in (file, out) if path is not None]
    if len(given) != 1:
        raise ConfigError(f"the workload goes into one file, got {len(given)} of FILE and --out; name one.")
    return given[0]


def _arrivals(arrivals: str | None, burstiness: float | None) -> Arrivals | None:
    if burstiness is None:
        return None if arrivals is None else parse_arrivals(arrivals)
    if arrivals is not None:
        raise ConfigError(f"--burstiness {burstiness:g} is --arrivals gamma:{burstiness:g}; leave one of them out.")
    return Gamma(burstiness)


def _workload_and_target(files: list[str], profile: str | None) -> tuple[Workload, Path]:
    *given, target = files
    names = [*given, *([] if profile is None else [profile])]
    if len(names) > 1:
        raise ConfigError(f"a trace is generated from one workload, got {', '.join(names)}; leave out all but one.")
    check_apart({"FILE": Path(target)}, [Path(name) for name in given if name != STDIN])
    check_writable(Path(target))
    return find_workload(names[0]).workload if names else WorkloadSpec(), Path(target)


def _changed(workload: Workload, given: dict[str, Any]) -> Workload:
    values = {name: value for name, value in given.items() if value is not None}
    if isinstance(workload, WorkloadSpec):
        return changed(workload, values)
    if values:
        raise ConfigError(
            f"flags change a workload of one class of clients, got {len(workload.clients)} classes; change the file instead."
        )
    return workload


def _beside(own: TraceDescription, drawn: TraceDescription) -> str:
    """The two in a table."""
    columns = [_compared(described) for described in (own, drawn)]
    return aligned(("", "trace", "drawn"), [(name, *(column[name] for column in columns)) for name in columns[0]])


def _compared(described: TraceDescription) -> dict[str, float | None]:
    lengths = {"prompt": described.prompt_tokens, "output": described.output_tokens}
    repeated = described.max_prefix_cache_hit_rate
    return {
        "requests": described.num_requests,
        "requests/s": described.mean_rate_rps,
        "requests/s, busiest 10 s": described.peak_rate_rps,
        "CV of gaps": described.gap_cv,
        **{f"{name} tokens, mean": found.mean for name, found in lengths.items()},
        **{f"{name} tokens, P50": found.p50 for name, found in lengths.items()},
        **{f"{name} tokens, P99": found.p99 for name, found in lengths.items()},
        "repeated prompt tokens, %": None if repeated is None else 100 * repeated,
    }
