"""The engine as machine code: its sources, compiled by mypyc, used for as long as they are what was compiled.

`hatch_build.py` puts the modules of PACKAGES into a folder named by a digest of their sources, and each of these packages
looks there first. Whoever edits a source gets the interpreted engine, until the next build. Both give the same bytes;
the compiled one is two to three times as fast. SERVECAST_INTERPRETED=1 asks for the other, for a debugger or a profiler.
"""

import os
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PACKAGES = ("serving", "steptime")
SIM = Path(__file__).parent
FOLDER = SIM / "_compiled"
SUFFIX = EXTENSION_SUFFIXES[0]
LIBRARY = f"engine__mypyc{SUFFIX}"


def sources() -> list[Path]:
    """The modules of these packages, and the packages themselves."""
    return sorted(path for package in PACKAGES for path in SIM.joinpath(package).glob("*.py"))


def current_folder() -> Path:
    """Where machine code of the sources as they are now belongs."""
    digest = sha256()
    for path in sources():
        digest.update(path.relative_to(SIM).as_posix().encode() + path.read_bytes())
    return FOLDER / digest.hexdigest()[:16]


@cache
def folder_in_use() -> Path | None:
    """Where the compiled modules come from; None if the engine is interpreted."""
    if os.environ.get("SERVECAST_INTERPRETED") or not FOLDER.is_dir():
        return None
    folder = current_folder()
    return folder if (folder / LIBRARY).exists() else None


def compiled_first(path: Sequence[str], package: str) -> list[str]:
    """A package's search path, with its compiled modules before the others."""
    folder = folder_in_use()
    return [str(folder / package), *path] if folder else [*path]
