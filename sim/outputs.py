"""Files and folders of results: they appear whole or not at all, and replace only what they may.

What is written stands under a unique temporary name beside its place until it is renamed. Links are followed. A target that
is no regular file (a device, a pipe, /dev/stdout) is written to.
"""

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sim.errors import ConfigError
from sim.inputs import is_there

MOST_LINKS = 40  # as Linux follows
_DESCRIPTORS = re.compile(r"/(dev|proc/[^/]+(/task/[^/]+)?)/fd")


@contextmanager
def writing(path: Path, option: str = "") -> Iterator[Path]:
    """Where to write the file that shall stand at `path`, in place once the block ends. Raises ConfigError where that fails."""
    check_writable(path, option)
    try:
        if _is_stream(path):
            yield path
        else:
            with _beside(Path(os.path.realpath(path))) as part:
                yield part
    except OSError as error:
        raise _refusal(path, option, error.strerror) from error


def check_writable(path: Path, option: str = "") -> None:
    """Raises ConfigError where a file could not be written to `path`: a folder, a name too long, no permission."""
    try:
        if path.is_dir():
            raise _refusal(path, option, "it is a folder")
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise _refusal(path, option, "its links lead in a circle")
        if target.exists() and not os.access(target, os.W_OK):
            raise _refusal(path, option, "it is read-only")
        if not _is_stream(path):
            _check_folder(target.parent)
    except (OSError, ValueError) as error:
        raise _refusal(path, option, getattr(error, "strerror", None) or str(error)) from None


@contextmanager
def writing_folder(folder: Path, option: str, check: Callable[[Path], None]) -> Iterator[Path]:
    """A new folder to write to, in the place of `folder` once the block ends; `check` raises for content to be kept.

    Raises ConfigError where that fails; nothing is left then, and what stood there stays.
    """
    target = Path(os.path.realpath(folder))
    missing = [parent for parent in target.parents if not is_there(parent)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".servecast-", dir=target.parent) as scratch:
            written = Path(scratch, "written")
            written.mkdir()
            yield written
            _swap(written, target, Path(scratch, "earlier"), check)
        missing.clear()
    except OSError as error:
        raise _refusal(folder, option, error.strerror) from error
    finally:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()


def check_folder_writable(folder: Path, option: str) -> None:
    """Raises ConfigError where no folder of results could be written there."""
    try:
        target = Path(os.path.realpath(folder))
        target.exists()  # raises for a name too long
        _check_folder(next(parent for parent in target.parents if parent.exists()))
    except (OSError, ValueError) as error:
        raise _refusal(folder, option, getattr(error, "strerror", None) or str(error)) from None


def check_apart(outputs: Mapping[str, Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raises ConfigError where an output, by its option, is also an input or another output."""
    given = {option: Path(os.path.realpath(path)) for option, path in outputs.items() if path and not _is_stream(path)}
    read = [Path(os.path.realpath(path)) for path in inputs if path]
    for option, path in given.items():
        for other in read:
            if path == other or path in other.parents or _is_same(path, other):
                raise ConfigError(
                    f"{option} {outputs[option]} would overwrite what is read, {other}; name another place."
                )
        for another, place in given.items():
            if another != option and path == place:
                raise ConfigError(f"{option} and {another} are the same place, {path}; name another for one of them.")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    part = target.with_name(f".servecast-{secrets.token_hex(6)}.part")
    try:
        yield part
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        part.replace(target)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _swap(written: Path, target: Path, earlier: Path, check: Callable[[Path], None]) -> None:
    """The old folder is moved aside and checked again: another process may have put a file into it meanwhile."""
    if not target.exists():
        written.rename(target)
        return
    written.chmod(stat.S_IMODE(target.stat().st_mode))
    try:
        target.rename(earlier)
        check(earlier)
        written.rename(target)
    except BaseException:
        if earlier.exists() and not target.exists():
            earlier.rename(target)
        raise


def _check_folder(folder: Path) -> None:
    """Raises OSError unless files can be made in it."""
    if not folder.is_dir():
        raise NotADirectoryError(0, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(0, f"no permission to write into {folder}")


def _is_stream(path: Path) -> bool:
    """A device, a pipe, or a descriptor that a shell has opened, whatever that leads to."""
    place = path
    for _ in range(MOST_LINKS):
        if _DESCRIPTORS.fullmatch(str(place.parent)):
            return True
        if not is_there(place, Path.is_symlink):
            break
        place = place.parent / place.readlink()
    return is_there(path) and not is_there(path, Path.is_file) and not is_there(path, Path.is_dir)


def _is_same(one: Path, other: Path) -> bool:
    """Two names of one file, by a hard link."""
    return is_there(one, Path.is_file) and is_there(other, Path.is_file) and one.samefile(other)


def _refusal(path: Path, option: str, reason: str | None) -> ConfigError:
    name = f"{option} {path}" if option else str(path)
    return ConfigError(f"{name} cannot be written: {reason}; name another place.")
