"""The compiled engine: the same results as the interpreted one, made of the same sources."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hatch_build

ROOT = Path(__file__).parents[1]
COMPILED = ROOT / "build/compiled"
is_compiled = pytest.mark.skipif(
    not list(COMPILED.glob("sim/_engine*")), reason="the engine is not compiled: `make compiled` does it"
)
RUNS = [
    ["Llama-3.1-8B", "--trace", "chat", "--rate-scale", "4", "--limit", "300"],  # chat
    ["Llama-3.1-8B", "--trace", "multi-turn", "--limit", "300", "--num-gpu-blocks-override", "9000"],  # shared prompts
    ["gpt-oss-20b", "--trace", "chat", "--rate-scale", "8", "--limit", "300"],  # windows
    ["Llama-3.1-8B", "--trace", "chat", "--rate-scale", "9", "--limit", "300", "--num-gpu-blocks-override", "600", "--max-model-len", "8192"],  # preemptions
]  # fmt: skip
RUN_ALL = "import json, sys; from sim.cli import run; sys.exit(sum([run(call) for call in json.loads(sys.argv[1])]))"


def printed(folder: Path, calls: list[list[str]]) -> list[str]:
    """The lines that the commands print, one after the other, with `sim` as that folder has it; but for how long it took."""
    process = [sys.executable, "-P", "-c", RUN_ALL, json.dumps(calls)]
    lines = subprocess.check_output(process, env=os.environ | {"PYTHONPATH": str(folder)}, text=True).splitlines()
    return [line for line in lines if "wall_time_s" not in line]


@is_compiled
def test_both_engines_print_the_same() -> None:
    """Whatever the schedule, down to the last digit."""
    calls = [["simulate", *arguments, "--gpu", "h100-sxm", "--json"] for arguments in RUNS]
    assert printed(COMPILED, calls) == printed(ROOT, calls)


@is_compiled
def test_what_is_compiled_is_what_is_here() -> None:
    """The wheel beside whose machine code they lie has these very sources; both engines say what they are."""
    for module in hatch_build.modules(ROOT):
        assert COMPILED.joinpath(module.relative_to(ROOT)).read_bytes() == module.read_bytes(), "run `make compiled`"
    (compiled,), (interpreted,) = (printed(folder, [["version"]]) for folder in (COMPILED, ROOT))
    assert compiled.endswith("(compiled engine)")
    assert interpreted.endswith("(interpreted engine)")


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, warnings: list[str]) -> hatch_build.EngineBuildHook:
    """The build hook on a machine without a C compiler."""

    def compile_engine(*_: Path) -> Path:
        raise SystemExit("error: command 'cc' failed: No such file or directory")

    monkeypatch.setattr(hatch_build, "compile_engine", compile_engine)
    app: Any = SimpleNamespace(display_warning=warnings.append)
    nothing: Any = None
    return hatch_build.EngineBuildHook(str(ROOT), {}, nothing, nothing, "", "wheel", app)


@pytest.fixture
def warnings() -> list[str]:
    return []


def test_without_a_compiler_the_wheel_is_pure(hook: hatch_build.EngineBuildHook, warnings: list[str]) -> None:
    """A warning says why, and nothing is added."""
    build_data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", build_data)
    assert build_data == {"force_include": {}}
    assert warnings == [
        "The engine could not be compiled and will be interpreted: error: command 'cc' failed: No such file or directory"
    ]


def test_a_wheel_to_be_published_is_compiled_or_not_made(
    hook: hatch_build.EngineBuildHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIBUILDWHEEL", "1")
    with pytest.raises(SystemExit, match="cc"):
        hook.initialize("standard", {"force_include": {}})


def test_an_editable_checkout_is_interpreted(hook: hatch_build.EngineBuildHook, warnings: list[str]) -> None:
    """Whoever edits a file of the engine runs what he wrote."""
    hook.initialize("editable", {"force_include": {}})
    assert warnings == []
