"""`servecast simulate`: replay a trace and print what `vllm bench serve` would print."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.client_flags import said_of_clients
from sim.cli.engine_flags import EngineCommand, engine_flags
from sim.cli.layerwise_flags import LayerwiseFlags
from sim.cli.options import print_json, warn
from sim.cli.progress import progress_bar
from sim.cli.run_flags import RunFlags
from sim.cli.shared_flags import SharedFlags, with_shared_flags
from sim.errors import ConfigError
from sim.outputs import writing
from sim.specs.notes import layout_notes

if TYPE_CHECKING:
    from sim.api import Result
    from sim.metrics.kv_blocks import KVCacheMetrics

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
@with_shared_flags
def simulate(
    ctx: typer.Context,
    shared: SharedFlags,
    run: RunFlags,
    layerwise: LayerwiseFlags,
    *,
    breakdown: Annotated[
        bool,
        typer.Option(
            "--breakdown", help="Show where the steps' time goes, by operator; with --out draw it as roofline.png."
        ),
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Replay in one pass and in constant memory, however long the trace; percentiles by a sketch.",
        ),
    ] = False,
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Processes that simulate replicas side by side, where nothing ties these together."),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write a page, summary, requests, steps and plots to this folder.")
    ] = None,
    step_log: Annotated[Path | None, typer.Option(help="Write each step's schedule to this JSONL file.")] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            help="Write the run as time series under vLLM's own names, for Prometheus to read in.", show_default=False
        ),
    ] = None,
    otlp_traces: Annotated[
        Path | None,
        typer.Option(
            help="Write the requests as OpenTelemetry spans, as vLLM exports them: OTLP in JSON.", show_default=False
        ),
    ] = None,
    kv_cache_metrics: Annotated[
        bool, typer.Option("--kv-cache-metrics", help="Follow a sample of KV blocks: lifetime, idle time, reuse.")
    ] = False,
    kv_cache_metrics_sample: Annotated[
        float, typer.Option(help="The share of blocks that --kv-cache-metrics follows, as in vLLM.")
    ] = 0.01,
) -> None:
    """Replay a request trace on a model and GPUs; report throughput and latency percentiles."""
    from sim import api
    from sim.report.breakdown import breakdown_json, breakdown_table
    from sim.report.kv_cache import kv_cache_text

    if out:
        from sim.report.folder import check_folder

        check_folder(out)
    outputs = {"--out": out, "--step-log": step_log, "--prometheus": prometheus, "--otlp-traces": otlp_traces}
    _check_kept({"--breakdown": breakdown, "--kv-cache-metrics": kv_cache_metrics, **outputs} if stream else {})
    arguments = shared.arguments(engine_flags(ctx), outputs, run.fleet, seed=run.seed, stream=stream) | run.arguments()
    with _log_to(step_log) as write_step, progress_bar("simulating") as progress:
        result = api.simulate(
            **arguments,
            stream=stream,
            layerwise=layerwise.settings(),
            keep_records=breakdown or kv_cache_metrics or any((out, prometheus, otlp_traces)),
            jobs=jobs,
            progress=progress,
            step_log=write_step,
        )
    if breakdown:
        result.summary["breakdown"] = breakdown_json(result.breakdown)
    followed = _follow_blocks(result, kv_cache_metrics_sample) if kv_cache_metrics else None
    if out:
        result.write(out)
    if prometheus:
        result.write_prometheus(prometheus, kv_cache=followed)
    if otlp_traces:
        result.write_otlp(otlp_traces)
    if shared.as_json:
        print_json(result.summary)
    else:
        typer.echo(str(result))
        if breakdown:
            typer.echo(f"\n{breakdown_table(result.breakdown)}")
        if followed:
            typer.echo(f"\n{kv_cache_text(result.summary['kv_cache_metrics'])}")
    warn(_talk(result, shared.price, out))


def _check_kept(asked: Mapping[str, object]) -> None:
    """Raises ConfigError for an output that takes what a stream does not keep."""
    flag = next((flag for flag, value in asked.items() if value), None)
    if flag:
        raise ConfigError(
            f"{flag} needs the requests and steps of a run, which --stream does not keep; take --json, which has all its figures, or leave one"
            " of them out."
        )


def _follow_blocks(result: "Result", sample: float) -> "KVCacheMetrics":
    """A sample of the KV blocks, in a second run; what is found also stands in the summary."""
    from sim.explanation.kv_cache import kv_cache_metrics

    found = kv_cache_metrics(result, sample=sample)
    result.summary["kv_cache_metrics"] = found.to_json()
    return found


def _talk(result: "Result", price: float | None, out: Path | None) -> Iterator[str]:
    """Messages on stderr beside the result."""
    yield from _overridden(result)
    for pool in result.fleet.pools:
        yield from layout_notes(pool.deployment.engine, pool.deployment.gpu)
    yield from _unserved(result)
    if result.replayed is not None:
        yield from said_of_clients(result.summary, result.replayed)
    yield from _at_limit(result.summary)
    yield from result.summary["limits"]["warnings"]
    yield from _cost(result.summary, price)
    yield _closing(result.summary, out)


def _cost(summary: Mapping[str, Any], price: float | None) -> Iterator[str]:
    """The cost of the run, if a price was given."""
    if price is not None and summary["cost_usd"] is not None:
        per_million = summary["usd_per_million_output_tokens"]
        yield (
            f"${summary['cost_usd']:,.2f} for {summary['gpu_hours']:,.3f} GPU hours at ${price:,.2f}"
            + (f", ${per_million:,.2f} per million output tokens." if per_million else ".")
        )


def _closing(summary: Mapping[str, Any], out: Path | None) -> str:
    place = f"; results are in {out}" if out else ""
    return f"{summary['arrived']:,} requests in {summary['wall_time_s']:.1f} s, {summary['confidence']['text']}{place}."


def _at_limit(summary: Mapping[str, Any]) -> Iterator[str]:
    """The warning about a P99 with too wide an interval, if there is one."""
    if "at_limit" in summary["confidence"]:
        yield f"{summary['confidence']['at_limit']['text']}."


def _overridden(result: "Result") -> Iterator[str]:
    """A warning: given KV blocks are simulated even if vLLM would not start with them."""
    for pool in result.fleet.pools:
        if not pool.deployment.plan.feasible:
            reason = pool.deployment.plan.reason
            yield f"vLLM would not start with these --num-gpu-blocks-override blocks: {reason}"


def _unserved(result: "Result") -> Iterator[str]:
    """How many requests were turned away and how many failed, and why the first of them; requests.csv has all reasons."""
    summary = result.summary
    for name, what, reasons in (("rejected", "were rejected", result.rejected), ("failed", "failed", result.failed)):
        if reasons:
            first = next(iter(reasons.values()))
            yield f"{summary[name]:,} of {summary['arrived']:,} requests {what}, the first for {first}."


@contextmanager
def _log_to(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A step log that appears under its name when the run is over."""
    if path is None:
        yield None
        return
    with writing(path, "--step-log") as place, place.open("w", encoding="utf-8") as file:
        yield lambda step: print(json.dumps(step, allow_nan=False), file=file)
