"""`servecast version`."""

import typer

from sim import __version__
from sim.engine import core

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version, and whether the engine is compiled."""
    typer.echo(version_line())


def version_line() -> str:
    """What `servecast version` prints."""
    return f"servecast {__version__} ({'interpreted' if core.__file__.endswith('.py') else 'compiled'} engine)"
