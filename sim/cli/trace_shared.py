"""What the commands of `servecast trace` share: arguments, and how they say what a trace is."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.completion import trace_names
from sim.cli.options import Columns, Limit, RateScale, RequestRate, warn
from sim.outputs import check_apart, check_writable
from sim.workload.describe import LengthSummary, TraceDescription, describe
from sim.workload.readers import read_trace
from sim.workload.source import find_trace
from sim.workload.trace import Trace
from sim.workload.writers import write_trace

Source = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="A trace file of any format that docs/traces.md lists, a workload's YAML, a bundled one by name, or -.",
        autocompletion=trace_names,
    ),
]
Target = Annotated[
    Path, typer.Argument(metavar="FILE", help="Written as .csv, .jsonl or .parquet, also .csv.gz and .jsonl.gz.")
]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of a workload, of a load of inference-perf, and of the order of conversations.")
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(help="The folder of a model's tokenizer, for files of conversations.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a trace is read; the fields are the flags."""

    columns: Columns = None
    request_rate: RequestRate = None
    rate_scale: RateScale = 1.0
    limit: Limit = None
    seed: Seed = 0
    tokenizer: Tokenizer = None

    def trace(self, source: str) -> Trace:
        return read_trace(source, **vars(self))


def check_target(target: Path, *sources: str) -> None:
    """Raises ConfigError where FILE is one of the traces that it is made from, and where it cannot be written."""
    check_apart({"FILE": target}, [find_trace(source) for source in sources])
    check_writable(target)


def keep(trace: Trace, target: Path, *, as_json: bool) -> None:
    """Writes a trace and says what it is."""
    write_trace(trace, target)
    typer.echo(f"Wrote {len(trace):,} requests to {target}.", err=True)
    _show(replace(trace, source=str(target), format="native"), as_json=as_json)


def _show(trace: Trace, *, as_json: bool) -> None:
    warn(trace.notes)
    description = describe(trace)
    typer.echo(json.dumps(asdict(description)) if as_json else lines(described_rows(description)))


def lines(rows: dict[str, str]) -> str:
    """One for each label."""
    return "\n".join(f"{label + ':':<26}{value}" for label, value in rows.items())


def described_rows(trace: TraceDescription) -> dict[str, str]:
    """Values by label."""
    rows = {
        "Trace": f"{trace.source} ({trace.format})",
        "Requests": f"{trace.num_requests:,}",
        "Duration": f"{trace.duration_s:,.1f} s",
        "Request rate, mean": _figure(trace.mean_rate_rps, " requests/s"),
        "Request rate, peak": _figure(trace.peak_rate_rps, " requests/s (busiest 10 s)"),
        "Burstiness (CV of gaps)": _figure(trace.gap_cv),
        "Prompt tokens": _lengths(trace.prompt_tokens),
        "Output tokens": _lengths(trace.output_tokens),
    }
    if trace.max_prefix_cache_hit_rate is not None:
        rows["Repeated prompt tokens"] = (
            f"{trace.max_prefix_cache_hit_rate:.1%} (the most that prefix caching can save)"
        )
    if trace.num_answers is not None:
        rows["Answers (n)"] = f"{trace.num_answers:,}"
    if trace.num_sessions is not None:
        rows["Sessions"] = f"{trace.num_sessions:,}"
    if trace.num_adapters is not None:
        rows["LoRA adapters"] = f"{trace.num_adapters:,}"
    if trace.requests_by_priority is not None:
        rows["Requests by priority"] = ", ".join(
            f"{key}: {count:,}" for key, count in trace.requests_by_priority.items()
        )
    return rows


def _figure(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _lengths(tokens: LengthSummary) -> str:
    return f"{tokens.total:,} in all; mean {tokens.mean:,.0f}, P50 {tokens.p50:,.0f}, P90 {tokens.p90:,.0f}, P99 {tokens.p99:,.0f}, max {tokens.max:,}"
