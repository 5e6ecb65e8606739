"""`servecast memory`: whether a model fits, and what is left for its KV cache."""

from typing import Annotated

import typer

from sim.cli.engine_flags import EngineCommand, chosen_model, engine_flags
from sim.cli.options import Gpu, Json, Model, print_json, warn

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
def memory(
    ctx: typer.Context,
    *,
    model: Model = None,
    gpu: Gpu,
    explain: Annotated[bool, typer.Option("--explain", help="Show each line's formula, numbers and source.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a model leaves for the KV cache on each GPU, and whether it fits; status 0 either way."""
    from sim import api
    from sim.report.memory import memory_table

    parsed = engine_flags(ctx)
    warn(parsed.warnings)
    deployment = api.deploy(chosen_model(model, parsed), gpu, engine=parsed.engine, vllm_version=parsed.vllm_version)
    plan = deployment.plan
    if as_json:
        ledger = {"ledger": [line._asdict() for line in plan.ledger]} if explain else {}
        print_json(plan.to_json() | ledger)
    else:
        typer.echo(f"{deployment}, vLLM {deployment.engine.vllm_version}\n")
        typer.echo(memory_table(plan, explain=explain))
