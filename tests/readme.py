"""The examples of the pages, run: `python -m tests.readme` rewrites their outputs, test_readme.py compares them."""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from code import InteractiveInterpreter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from sim.cli import run

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (
    README,
    ROOT / "traces/README.md",
    ROOT / "docs/first_hour.md",
    ROOT / "docs/fleet_search.md",
    ROOT / "docs/measured.md",
    ROOT / "docs/monitoring.md",
    ROOT / "docs/results.md",
    ROOT / "docs/clients.md",
    ROOT / "docs/comparing.md",
    ROOT / "docs/explaining.md",
    ROOT / "docs/changing_fleets.md",
    ROOT / "docs/fleet.md",
    ROOT / "docs/lora.md",
    ROOT / "docs/parallelism.md",
    ROOT / "docs/quantization.md",
    ROOT / "docs/seeds.md",
    ROOT / "docs/speculation.md",
    ROOT / "docs/workloads.md",
    ROOT / "docs/traces.md",
    ROOT / "docs/streaming.md",
    *sorted(ROOT.glob("docs/how_to/*.md")),
)
BLOCK = re.compile(r"^```(console|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"""servecast ((?:[^|&;<>'"]|'[^']*'|"[^"]*")+?)(?= *(?:[12]?[<>]|[|&;]|$))""")
"""The arguments before anything that is the shell's."""
FED = re.compile(r"(?!servecast )(.*?[^|])\| (?=servecast )", re.DOTALL)
"""What writes into a call."""
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
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


def shell(command: str) -> str:
    """What a command prints. The first call of servecast in it is made in this process, which has imported it all."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, COLUMNS="100", PATH=PATH):
        if fed := FED.match(command):
            Path(folder, "in").write_bytes(subprocess.check_output(["bash", "-c", fed[1]]))
            command = command[fed.end() :]
        if call := CALL.match(command):
            status = _servecast(shlex.split(call[1]), Path(folder))
            then = command[call.end() :]
            said = (f"cat {folder}/out", f"cat {folder}/err >&2")
            first, last = reversed(said) if "|" in then else said  # else what reads the pipe may print before or after
            command = f"({first}; {last}; exit {status}) {then}"
        return subprocess.check_output(["bash", "-c", f"({command}) 2>&1"], text=True)


def _servecast(arguments: list[str], folder: Path) -> int:
    """The exit status; what it reads, prints and says lies in that folder."""
    read, out, err = (folder.joinpath(name) for name in ("in", "out", "err"))
    read.touch()
    one_core = patch(
        "os.cpu_count", return_value=1
    )  # no search starts processes, each of which would import it all again
    with (
        _standard_input(read),
        out.open("w") as stdout, err.open("w") as stderr, redirect_stdout(stdout), redirect_stderr(stderr),
        one_core,
    ):  # fmt: skip
        return run(arguments)


@contextmanager
def _standard_input(path: Path) -> Iterator[None]:
    """The file, for whoever reads the descriptor."""
    kept = os.dup(0)
    with path.open("rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def _python(statement: str, session: InteractiveInterpreter) -> str:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        session.runsource(statement)
    return out.getvalue()


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rerun(page.read_text(encoding="utf-8")), encoding="utf-8")
