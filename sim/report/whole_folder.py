"""A folder of results, written whole or not at all."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sim.errors import ConfigError


def check_replaceable(folder: Path, what: str, is_ours: Callable[[str], bool]) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only files whose names are ours; `what` names them."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file, but results are a folder; name another place.")
    foreign = sorted(path.name for path in folder.iterdir() if not is_ours(path.name))
    if foreign:
        raise ConfigError(
            f"--out {folder} already holds `{foreign[0]}`, which is not {what} of Servecast; name a new or empty folder."
        )


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder to write to, put in the place of `folder` once all is written. Raises ConfigError where that fails."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            written = Path(scratch, "results")
            written.mkdir()
            yield written
            if folder.exists():
                folder.rename(Path(scratch, "earlier"))
            written.rename(folder)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written: {error.strerror}; name another place.") from error


def write_json(path: Path, answer: Mapping[str, Any]) -> None:
    """One object, indented; numbers JSON cannot hold are errors."""
    path.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n", encoding="utf-8")
