"""`servecast memory`: whether a model fits, the room for its KV cache, and the lines that vLLM will log."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.engine_flags import EngineCommand, chosen_model, engine_flags
from sim.cli.layerwise_flags import LayerwiseFlags
from sim.cli.options import Gpu, Json, Model, print_json, warn
from sim.cli.shared_flags import with_shared_flags
from sim.errors import ConfigError, ModelError
from sim.memory.design import GraphMemoryModel
from sim.specs.notes import engine_notes
from sim.specs.serve_command import ParsedServe
from sim.units import GIB

if TYPE_CHECKING:
    from sim.deployment import Deployment
    from sim.memory.startup_log import StartupLog
    from sim.specs.model import ModelSpec

DOES_NOT_FIT = 3
app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
@with_shared_flags
def memory(
    ctx: typer.Context,
    layerwise: LayerwiseFlags,
    *,
    model: Model = None,
    gpu: Gpu,
    explain: Annotated[bool, typer.Option("--explain", help="Show each line's formula, numbers and source.")] = False,
    from_log: Annotated[
        Path | None, typer.Option(help="A log of vLLM's start-up to plan again and compare with, line by line.")
    ] = None,
    mtp: Annotated[bool, typer.Option("--mtp", help="Load the layers for multi-token prediction too.")] = False,
    graph_memory_model: Annotated[
        GraphMemoryModel, typer.Option(help="CUDA graphs as measured, or by the original design's formula.")
    ] = "measured",
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="End with status 3 where it does not fit, after showing the plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a model leaves for the KV cache on each GPU, and whether it fits.

    The exit status is 0 either way, or with --require-fit 3 where it does not fit.
    """
    from sim.deployment import deploy

    parsed = engine_flags(ctx)
    log = _read_log(from_log)
    if log:
        parsed, mtp = _with_log(parsed, log, model), mtp or log.loads_prediction_layers
    warn(parsed.warnings)
    cut = layerwise.settings()
    if cut is not None:
        _refuse_beside_offload(mtp=mtp, from_log=from_log, graph_memory_model=graph_memory_model)
        fits = _show_offload(chosen_model(model, parsed), gpu, parsed, cut, explain=explain, as_json=as_json)
        _end(fits or not require_fit)
        return
    deployment = deploy(
        _loaded(chosen_model(model, parsed), parsed) if log else chosen_model(model, parsed),
        gpu,
        parsed.engine,
        vllm_version=parsed.vllm_version,
        graph_memory=graph_memory_model,
        prediction_layers=mtp,
    )
    if as_json:
        print_json(_json(deployment, log, explain=explain))
    else:
        _print_plan(deployment, log, graph_memory_model, explain=explain)
    _end(deployment.plan.feasible or not require_fit)


def _end(is_fine: bool) -> None:
    if not is_fine:
        raise typer.Exit(DOES_NOT_FIT)


def _refuse_beside_offload(**options: object) -> None:
    for name, value in options.items():
        if value and value != "measured":
            raise ConfigError(f"--{name.replace('_', '-')} changes nothing with --offload; leave one of them out.")


def _json(deployment: "Deployment", log: "StartupLog | None", *, explain: bool) -> dict[str, Any]:
    from sim.report.startup_log import log_comparison, log_json

    result = dict(deployment.plan.to_json())
    if tier := deployment.offload:
        result |= {"num_cpu_blocks": tier.cpu_chunks, "cpu_kv_cache_bytes": tier.cpu_chunks * tier.block_bytes}
    if explain:
        result["ledger"] = [line._asdict() for line in deployment.plan.ledger]
    if log:
        result["log"] = log_json(log, log_comparison(log, deployment.plan))
    return result


def _print_plan(deployment: "Deployment", log: "StartupLog | None", graphs: GraphMemoryModel, *, explain: bool) -> None:
    from sim.memory.remedies import remedies
    from sim.report.graph_replay import replay_lines
    from sim.report.memory import memory_table, remedy_lines
    from sim.report.startup_log import log_comparison, log_notes, log_table

    model, gpu, engine, plan = deployment.model, deployment.gpu, deployment.engine, deployment.plan
    typer.echo(f"{deployment}, vLLM {engine.vllm_version}\n")
    typer.echo(memory_table(plan, explain=explain) + "\n")
    if tier := deployment.offload:
        typer.echo(
            f"Host memory for KV: {tier.cpu_chunks * tier.block_bytes / GIB:.2f} GiB ({tier.cpu_chunks:,} blocks)\n"
        )
    advice = replay_lines(engine) if plan.feasible else remedy_lines(remedies(model, gpu, engine, graph_memory=graphs))
    typer.echo("\n".join(advice))
    if log:
        typer.echo("\n" + log_table(log_comparison(log, plan)))
        warn(log_notes(log))


def _read_log(path: Path | None) -> "StartupLog | None":
    from sim.memory.startup_log import read_startup_log

    return read_startup_log(path) if path else None


def _with_log(parsed: ParsedServe, log: "StartupLog", model: str | None) -> ParsedServe:
    """What the log states, where this call does not say otherwise."""
    engine, version = replace(log.engine, **parsed.engine.given), parsed.vllm_version or log.vllm_version
    return ParsedServe(
        model=parsed.model or model or log.model,
        engine=engine,
        vllm_version=version,
        warnings=tuple(dict.fromkeys((*parsed.warnings, *engine_notes(engine, version)))),
        files=parsed.files,
    )


def _loaded(name: str, parsed: ParsedServe) -> "ModelSpec":
    """A log names a model as it was on that machine: where its path is not here, its last part may be a known name."""
    from sim.specs.models import load_model

    try:
        return load_model(name, quantization=parsed.engine.quantization)
    except ModelError as error:
        try:
            return load_model(Path(name).name, quantization=parsed.engine.quantization)
        except ModelError:
            raise error from None


def _show_offload(
    model: str, gpu: str, parsed: ParsedServe, cut: dict[str, Any], *, explain: bool, as_json: bool
) -> bool:
    """Prints the plan; whether it fits."""
    from sim.memory.layerwise_offload import LayerwiseSettings, layerwise_plan, layerwise_widths, saved
    from sim.report.layerwise_offload import fits, layerwise_json, layerwise_table
    from sim.specs.hardware import load_gpu
    from sim.specs.models import load_model
    from sim.specs.vllm import resolve_engine

    spec, profile = load_model(model, quantization=parsed.engine.quantization), load_gpu(gpu)
    engine = resolve_engine(parsed.engine, spec, profile, vllm_version=parsed.vllm_version)
    if engine.num_gpus > 1:
        raise ConfigError(f"--offload layerwise is planned for one GPU, got {engine.num_gpus}; leave -tp and -pp out.")
    settings = LayerwiseSettings(engine.max_model_len or spec.max_model_len, **cut)
    widths = layerwise_widths(spec)
    plan, offers = layerwise_plan(widths, settings, spec.weight_bytes()), saved(widths, settings)
    available = int(profile.memory_bytes * engine.gpu_memory_utilization)
    if as_json:
        print_json(layerwise_json(plan, available, offers))
    else:
        typer.echo(f"{spec.name} on {profile.name}, one request of {settings.seq_len:,} tokens, layer-wise offload\n")
        typer.echo(layerwise_table(plan, available, offers, explain=explain))
    return fits(plan, available)
