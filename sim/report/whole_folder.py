"""A folder of results, written whole or not at all."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.outputs import check_folder_writable, writing_folder


def check_replaceable(folder: Path, what: str, is_ours: Callable[[str], bool]) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only files whose names are ours; `what` names them."""
    check_folder_writable(folder, "--out")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file, but results are a folder; name another place.")
    _check_content(folder, folder, what, is_ours)


def _check_content(place: Path, folder: Path, what: str, is_ours: Callable[[str], bool]) -> None:
    foreign = sorted(path.name for path in place.iterdir() if not (is_ours(path.name) and path.is_file()))
    if foreign:
        raise ConfigError(
            f"--out {folder} already holds `{foreign[0]}`, which is not {what} of Servecast; name a new or empty folder."
        )


@contextmanager
def replacing(folder: Path, what: str, is_ours: Callable[[str], bool]) -> Iterator[Path]:
    """A new folder to write to, put in the place of `folder` once all is written. Raises ConfigError as above."""
    check_replaceable(folder, what, is_ours)
    with writing_folder(folder, "--out", lambda earlier: _check_content(earlier, folder, what, is_ours)) as written:
        yield written


def write_json(path: Path, answer: Mapping[str, Any]) -> None:
    """One object, indented; numbers JSON cannot hold are errors."""
    path.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n", encoding="utf-8")
