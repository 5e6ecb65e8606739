"""`servecast version`."""

import typer

from sim import __version__
from sim.compiled import folder_in_use

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version, and whether the engine is compiled."""
    typer.echo(version_line())


def version_line() -> str:
    """What `servecast version` prints."""
    return f"servecast {__version__} ({'compiled' if folder_in_use() else 'interpreted'} engine)"
