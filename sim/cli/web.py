"""`servecast web`: the live what-if page, in a browser on this machine."""

from typing import Annotated

import typer

from sim.cli.client_flags import Clock
from sim.cli.engine_flags import EngineCommand, chosen_model, engine_flags
from sim.cli.options import GivenRouter, Limit, Model, Replicas, RequestRate, Slos, warn

app = typer.Typer(add_completion=False)


@app.command(cls=EngineCommand)
def web(
    ctx: typer.Context,
    model: Model = None,
    *,
    gpu: Annotated[str, typer.Option(help="The GPU that the page begins with.")] = "h100-sxm",
    trace: Annotated[str, typer.Option(help="The trace or workload that it begins with.")] = "chat",
    request_rate: RequestRate = None,
    limit: Limit = None,
    slo: Slos = None,
    clock: Clock = "engine",
    replicas: Replicas = None,
    router: GivenRouter = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0 for any that is free.")] = 8321,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page on this machine whose every change is simulated; it begins with what the flags say."""
    from sim.web.server import serving
    from sim.web.what_if import WhatIf, engine_controls

    parsed = engine_flags(ctx)
    start = {
        "trace": trace,
        "rate": request_rate,
        "limit": limit,
        "slo": ",".join(slo or ()),
        "clock": None if clock == "engine" else clock,
        "model": chosen_model(model or (None if parsed.model else "Llama-3.1-8B"), parsed),
        "gpu": gpu,
        "replicas": replicas,
        "router": router,
        "vllm-version": parsed.vllm_version,
        **engine_controls(parsed.engine),
    }
    query = {name: str(value) for name, value in start.items() if value not in {None, ""}}
    server = serving(WhatIf.of_query(query), port)
    address = f"http://{server.host}:{server.port}/"
    warn([*parsed.warnings, f"the page is at {address}; Ctrl-C ends it."])
    if open_browser:
        typer.launch(address)
    server.serve_forever()
