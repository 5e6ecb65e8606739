"""CONTRIBUTING.md's patches, made to a copy of the tree, and its commands, run there: `python -m tests.contributing` renews their output."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.readme import ROOT, shell

PAGE = ROOT / "CONTRIBUTING.md"
COPIED = ("sim", "hardware_profiles", "traces")
BLOCK = re.compile(r"^```(diff|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rerun(text: str, tree: Path) -> str:
    """The page with the output of each command as it is in the patched copy."""
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tree / folder)  # what Python compiled comes along
    return BLOCK.sub(lambda block: f"```{block[1]}\n{_do(block[1], block[2], tree)}```", text)


def _do(kind: str, block: str, tree: Path) -> str:
    if kind == "diff":
        subprocess.run(["git", "apply", "-"], input=block, cwd=tree, text=True, check=True)
        return block
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{shell(command, tree, PYTHONPATH=str(tree))}" for command in commands)


def renewed() -> str:
    """What the page should say."""
    with tempfile.TemporaryDirectory() as folder:
        return rerun(PAGE.read_text(encoding="utf-8"), Path(folder))


if __name__ == "__main__":
    PAGE.write_text(renewed(), encoding="utf-8")
