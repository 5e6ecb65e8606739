"""`servecast version`."""

import typer

from sim import __version__

app = typer.Typer(add_completion=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"servecast {__version__}")
