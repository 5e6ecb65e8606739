"""Bad inputs of every kind at every place: each ends in one sentence, soon, and leaves nothing behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.cli import run
from tests.attack.places import attacks, prepare

TIME_LIMIT_S = 20.0
MOST_LETTERS = 2_000
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
EVERY = int(os.environ.get("SERVECAST_ATTACK_EVERY", "11"))  # 1 makes all attacks, which take two minutes
ALL = {attack.name: attack for attack in attacks()}
ATTACKS = {name: attack for at, (name, attack) in enumerate(ALL.items()) if at % EVERY == 0 or attack.is_file}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("attack")
    prepare(folder)
    yield folder
    (folder / "closed").chmod(0o755)


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Calls run there, with a cache of their own, without a network, and no longer than TIME_LIMIT_S."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.parent / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _hang)
        signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    yield
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _hang(*_: object) -> None:
    pytest.fail(f"takes longer than {TIME_LIMIT_S} s")


def test_there_are_hundreds() -> None:
    """Names are unique, so that none hides another."""
    assert len(ALL) == sum(1 for _ in attacks()) > 2_000
    assert len(ATTACKS) > 300


@pytest.mark.parametrize("name", ATTACKS)
def test_bad_input(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, nothing on stdout, one sentence at the end of stderr, no file that was not there before."""
    attack = ATTACKS[name]
    if IS_ROOT and "closed folder" in name:
        pytest.skip("root may enter any folder")
    for file, content in attack.files.items():
        (place / file).write_bytes(content)
    before = names(place)
    status = run(attack.call)
    out, err = capsys.readouterr()
    left = names(place) - before
    for path in sorted((place / name for name in (*left, *attack.files)), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert status == 2 or (attack.maybe and status in {0, 3}), err
    if status == 2:
        check_sentence(out, err)
        assert not left


def check_sentence(out: str, err: str) -> None:
    """Talk may come before it; a cut of what was given keeps it short."""
    *_, last = err.splitlines()
    assert out == ""
    assert last.startswith("servecast: error: ")
    assert len(last) < MOST_LETTERS
    assert "Traceback" not in err


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
