"""The compiled engine: the same results as the interpreted one, and only of the sources that are there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build
from sim.compiled import FOLDER, LIBRARY, SUFFIX, current_folder

is_compiled = pytest.mark.skipif(
    not (current_folder() / LIBRARY).exists(), reason="the engine is not compiled: `make compiled` does it"
)
ROOT = Path(__file__).parents[1]
WHERE = "import sim.serving.core as engine, sim.steptime.roofline as times; print(engine.__file__, times.__file__)"
RUNS = {
    "chat": ["Llama-3.1-8B", "--trace", "chat", "--rate-scale", "4"],
    "shared prompts": ["Llama-3.1-8B", "--trace", "multi-turn", "--num-gpu-blocks-override", "9000"],
    "windows": ["gpt-oss-20b", "--trace", "chat", "--rate-scale", "8", "--limit", "300"],
    "preemptions": ["Llama-3.1-8B", "--trace", "chat", "--rate-scale", "9", "--num-gpu-blocks-override", "600", "--max-model-len", "8192"],
}  # fmt: skip


def run(*arguments: str, folder: Path = ROOT, **environment: str) -> str:
    """What a process of this Python prints, with `sim` as that folder has it."""
    surroundings = os.environ | {"PYTHONPATH": str(folder), "SERVECAST_INTERPRETED": ""} | environment
    return subprocess.check_output([sys.executable, *arguments], cwd=folder, env=surroundings, text=True)


@is_compiled
@pytest.mark.parametrize("name", RUNS)
def test_both_engines_print_the_same(name: str) -> None:
    """Whatever the schedule, down to the last digit."""
    code = "from sim.cli import main; main()"
    arguments = ["-c", code, "simulate", *RUNS[name], "--gpu", "h100-sxm", "--json"]
    compiled, interpreted = run(*arguments).splitlines(), run(*arguments, SERVECAST_INTERPRETED="1").splitlines()
    assert [line for line in compiled if "wall_time_s" not in line] == [
        line for line in interpreted if "wall_time_s" not in line
    ]


@is_compiled
def test_an_edited_source_is_interpreted(tmp_path: Path) -> None:
    """Also if it is none of those that hold the change; SERVECAST_INTERPRETED does it for unchanged ones."""
    shutil.copytree(ROOT / "sim", tmp_path / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    compiled = [str(tmp_path / path.relative_to(ROOT)) for path in _modules(current_folder(), SUFFIX)]
    sources = [str(path) for path in _modules(tmp_path / "sim", ".py")]
    assert run("-c", WHERE, folder=tmp_path).split() == compiled
    assert run("-c", WHERE, folder=tmp_path, SERVECAST_INTERPRETED="1").split() == sources
    with (tmp_path / "sim/serving/queues.py").open("a") as source:
        source.write("# changed\n")
    assert run("-c", WHERE, folder=tmp_path).split() == sources


def _modules(folder: Path, suffix: str) -> list[Path]:
    return [folder / f"serving/core{suffix}", folder / f"steptime/roofline{suffix}"]


@is_compiled
def test_what_is_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anything else touched."""
    monkeypatch.setattr(hatch_build, "_compile", None)
    before = sorted(FOLDER.rglob("*"))
    hatch_build.compile_engine()
    assert sorted(FOLDER.rglob("*")) == before


def test_without_a_compiler_the_wheel_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning says why, and nothing is added."""
    failed = SimpleNamespace(returncode=1, stderr="Traceback\nerror: command 'cc' failed: No such file or directory\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    warnings: list[str] = []
    app: Any = SimpleNamespace(display_warning=warnings.append)
    nothing: Any = None
    hook = hatch_build.EngineBuildHook(str(ROOT), {}, nothing, nothing, "", "wheel", app)
    build_data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build_data)
    assert build_data == {"artifacts": []}
    assert warnings == [
        "The engine could not be compiled and will be interpreted: error: command 'cc' failed: No such file or directory"
    ]
