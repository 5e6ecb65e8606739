"""The examples of the pages, run: `python -m tests.readme` rewrites their outputs, test_readme.py compares them."""

import contextlib
import io
import os
import re
import subprocess
import sys
from code import InteractiveInterpreter
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (
    README,
    ROOT / "traces/README.md",
    ROOT / "docs/fleet_search.md",
    ROOT / "docs/measured.md",
    ROOT / "docs/results.md",
    ROOT / "docs/clients.md",
    ROOT / "docs/changing_fleets.md",
    ROOT / "docs/fleet.md",
    ROOT / "docs/lora.md",
    ROOT / "docs/parallelism.md",
    ROOT / "docs/quantization.md",
    ROOT / "docs/speculation.md",
)
BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WALL_TIME = re.compile(r"requests in [\d.,]+ s")


def rerun(text: str) -> str:
    """The text with the output of each example as it is now."""
    session = InteractiveInterpreter()
    return BLOCK.sub(lambda block: f"```{block[1]}\n{_run(block[1], block[2], session)}```", text)


def comparable(text: str) -> str:
    """The text without what differs from run to run: how long it took."""
    return WALL_TIME.sub("requests in some s", text)


def _run(kind: str, block: str, session: InteractiveInterpreter) -> str:
    prompt = "$ " if kind == "console" else ">>> "
    commands = re.findall(rf"^{re.escape(prompt)}.*\n(?:\.\.\. .*\n)*", block, re.MULTILINE)
    typed = [_bare(command) for command in commands]
    outputs = [shell(command) if kind == "console" else _python(command, session) for command in typed]
    return "".join(command + output for command, output in zip(commands, outputs, strict=True))


def _bare(command: str) -> str:
    """What was typed, without prompts."""
    return "\n".join(re.sub(r"^(\$|>>>|\.\.\.) ", "", line) for line in command.splitlines())


def shell(command: str, folder: Path | None = None, **variables: str) -> str:
    """What a command prints in that folder, with these variables besides its own."""
    environment = (
        os.environ
        | variables
        | {
            "COLUMNS": "100",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
    )
    ran = subprocess.run(
        ["bash", "-c", f"({command}) 2>&1"], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout


def _python(statement: str, session: InteractiveInterpreter) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        session.runsource(statement)
    return out.getvalue()


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rerun(page.read_text(encoding="utf-8")), encoding="utf-8")
