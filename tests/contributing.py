"""CONTRIBUTING.md's patches, made to a copy of the tree, and its commands, run there: `python -m tests.contributing` renews their output."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.readme import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
COPIED = ("sim", "hardware_profiles", "traces")
PATCH = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RERUN = "import sys; from tests.readme import rerun; sys.stdout.write(rerun(sys.stdin.read()))"


def renewed() -> str:
    """The page with the output of each command as it is in one copy that has all patches."""
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as tree:
        for folder in COPIED:
            shutil.copytree(ROOT / folder, Path(tree, folder))  # what Python compiled comes along
        for patch in PATCH.findall(text):
            subprocess.run(["git", "apply", "-"], input=patch, cwd=tree, text=True, check=True)
        paths = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}"}
        return subprocess.check_output([sys.executable, "-c", RERUN], input=text, cwd=tree, env=paths, text=True)


if __name__ == "__main__":
    PAGE.write_text(renewed(), encoding="utf-8")
