"""What is written appears whole or not at all, and replaces nothing but an earlier file of the same place."""

import os
import stat
import threading
from pathlib import Path

import pytest

from sim.errors import ConfigError
from sim.outputs import check_apart, check_writable, writing, writing_folder


def write(path: Path, text: str = "new") -> None:
    with writing(path) as place:
        place.write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def anything(_: Path) -> None:
    """No content has to be kept."""


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """Until then the earlier one stands, and afterwards nothing else does."""
    path = tmp_path / "f"
    path.write_text("old")
    with writing(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_fails_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    """Neither a half-written file nor a temporary one."""

    def fail() -> None:
        with writing(tmp_path / "f") as place:
            place.write_text("half")
            raise failure

    with pytest.raises(failure):
        fail()
    assert names(tmp_path) == []


def test_a_neighbour_of_a_likely_name_is_spared(tmp_path: Path) -> None:
    """Temporary names are unique, whatever the user has beside the target."""
    for name in (".f.part", "f.part", "f.tmp"):
        (tmp_path / name).write_text("mine")
    write(tmp_path / "f")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        ".f.part": "mine",
        "f.part": "mine",
        "f.tmp": "mine",
        "f": "new",
    }


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file that it leads to is replaced, or made; the link stays."""
    for name in ("there", "absent"):
        (tmp_path / f"to-{name}").symlink_to(name)
    (tmp_path / "there").write_text("old")
    for name in ("there", "absent"):
        write(tmp_path / f"to-{name}")
        assert (tmp_path / f"to-{name}").is_symlink()
        assert (tmp_path / name).read_text() == "new"


def test_the_mode_of_an_earlier_file_stays(tmp_path: Path) -> None:
    """A private file does not become readable by all; a new one has the mode that the shell would give it."""
    (tmp_path / "private").touch(mode=0o600)
    for name in ("private", "new"):
        write(tmp_path / name)
    (tmp_path / "plain").touch()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["private"] == 0o600
    assert modes["new"] == modes["plain"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """And stands there afterwards."""
    pipe, got = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(pipe)
    reader.join()
    assert got == ["new"]
    assert pipe.is_fifo()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_written_to(tmp_path: Path) -> None:
    """A full one says so and is not replaced."""
    device = tmp_path / "full"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        device.open("w").close()
    except OSError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(ConfigError, match="No space left on device"):
        write(device)
    assert device.is_char_device()
    assert names(tmp_path) == ["full"]


def test_a_descriptor_is_written_to(tmp_path: Path) -> None:
    """`/dev/fd/5 5>file` writes into the file that the shell opened; it is not replaced."""
    path = tmp_path / "f"
    with path.open("w") as opened:
        write(Path(f"/dev/fd/{opened.fileno()}"))
        assert os.fstat(opened.fileno()).st_ino == path.stat().st_ino
    assert path.read_text() == "new"


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "none/f", "file/f", ".", "loop"])
def test_a_place_for_no_file_is_refused_beforehand(tmp_path: Path, name: str) -> None:
    """In one sentence, and with nothing left."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r"cannot be written: .+; name another place\.$"):
        check_writable(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be written"):
        write(tmp_path / name)
    assert names(tmp_path) == ["file", "loop"]


def test_an_output_is_no_input(tmp_path: Path) -> None:
    """By the same name, by a link, by a hard link, or in the folder that is replaced; and no two outputs are one."""
    given = tmp_path / "in"
    given.touch()
    (tmp_path / "link").symlink_to("in")
    (tmp_path / "hard").hardlink_to(given)
    for output in (given, tmp_path / "link", tmp_path / "hard", tmp_path, tmp_path / "x/../in"):
        with pytest.raises(ConfigError, match=r"--out .* would overwrite what is read"):
            check_apart({"--out": output}, [given])
    with pytest.raises(ConfigError, match="--out and --log are the same place"):
        check_apart({"--out": tmp_path / "new", "--log": tmp_path / "new"}, [])
    check_apart({"--out": tmp_path / "new", "--log": None}, [given, None, "chat"])


def test_a_folder_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    """Whole, also through a link, and the folders above are made."""
    (tmp_path / "a").symlink_to("b/c")
    for text in ("old", "new"):
        with writing_folder(tmp_path / "a", "--out", anything) as folder:
            (folder / text).touch()
    assert (tmp_path / "a").is_symlink()
    assert names(tmp_path / "b/c") == ["new"]
    assert names(tmp_path / "b") == ["c"]


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Not even the folders above that were made for it."""

    def fail() -> None:
        with writing_folder(tmp_path / "a/b/c", "--out", anything) as folder:
            (folder / "f").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == []


def test_what_came_into_the_folder_meanwhile_is_kept(tmp_path: Path) -> None:
    """It is looked at once more before it is replaced."""
    folder = tmp_path / "a"
    folder.mkdir()

    def refuse(earlier: Path) -> None:
        raise ConfigError(f"holds {names(earlier)}")

    def fail() -> None:
        with writing_folder(folder, "--out", refuse):
            (folder / "mine").write_text("mine")

    with pytest.raises(ConfigError, match="mine"):
        fail()
    assert (folder / "mine").read_text() == "mine"
    assert names(tmp_path) == ["a"]
