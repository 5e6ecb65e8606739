"""`servecast version`."""

from importlib.util import find_spec

import typer

from sim import __version__

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version, and whether the engine is compiled."""
    typer.echo(version_line())


def version_line() -> str:
    """What `servecast version` prints."""
    core = find_spec("sim.engine.core")
    is_compiled = core is not None and not str(core.origin).endswith(".py")
    return f"servecast {__version__} ({'compiled' if is_compiled else 'interpreted'} engine)"
