import re
import shlex
from pathlib import Path

import pytest

from sim.cli.app import COMMANDS, _command
from tests.readme import PAGES, README, ROOT, comparable, rerun


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_shows_what_its_examples_print(page: Path) -> None:
    """Every command on it runs and prints what stands below it; `make readme` renews the pages."""
    text = page.read_text(encoding="utf-8")
    assert comparable(rerun(text)) == comparable(text)


def test_lines_that_are_shown_alone_have_flags_that_there_are() -> None:
    """Those of which no output stands below; they are taken apart and not run."""
    lines = [
        line
        for page in (README, *ROOT.glob("docs/**/*.md"))
        for line in re.findall(
            r"^(?: {4,})?servecast (\w.*?)(?: *#.*)?$", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        if shlex.split(line)[0] in COMMANDS
    ]
    assert len(lines) >= 8
    for line in lines:
        name, *words = shlex.split(line)
        _command(name).make_context(name, words)


def test_the_readme_stays_short() -> None:
    """A newcomer reads it to the end."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 200


def test_the_first_hour_needs_no_checkout() -> None:
    """Whoever installed a wheel has none of these folders."""
    commands = re.findall(r"^\$ (.*)", (ROOT / "docs/first_hour.md").read_text(encoding="utf-8"), re.MULTILINE)
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    words = [word for command in commands for word in command.split()]
    assert words
    assert [word for word in words if word.partition("/")[0] in folders] == []


def test_the_tree_names_the_folders_that_there_are() -> None:
    """One line each."""
    packages = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in ROOT.glob("sim/*/**/__init__.py")}
    named = re.findall(r"^    (sim/[\w/]+/) +\w", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(packages)
