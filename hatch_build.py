"""Compiles the engine while a wheel is built or a checkout is installed; `python hatch_build.py` does it by hand.

Where there is no C compiler a warning says so and the engine is interpreted: slower, otherwise the same.
HATCH_BUILD_NO_HOOKS=true leaves it out.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import shorten
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from sim.compiled import FOLDER, LIBRARY, PACKAGES, SUFFIX, current_folder, sources

NOT_COMPILED = ("__init__.py", "linear.py", "queues.py")
"""mypyc knows neither packages that set their own path, nor pydantic's classes, nor lists with methods of one's own."""
ROUNDING = [] if os.name == "nt" else ["-ffp-contract=off"]
"""A product and a sum are rounded each for itself, as Python does it, also where one instruction could do both."""
MYPY_CONFIG = """
[mypy]
ignore_missing_imports = true
[mypy-pandas.*,pydantic.*,transformers.*,sim.api,sim.search.*]
follow_imports = skip
follow_imports_for_stubs = true
"""


class EngineBuildHook(BuildHookInterface[Any]):
    """Compiles in a process of its own, and adds what came of it to a wheel; an editable install finds it in place."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        done = subprocess.run([sys.executable, __file__], cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = shorten((done.stderr or done.stdout).strip().split("\n")[-1], 200)
            self.app.display_warning(f"The engine could not be compiled and will be interpreted: {reason}")
        elif version == "standard":
            compiled = current_folder().relative_to(ROOT).as_posix()
            build_data["artifacts"].append(f"/{compiled}/**/*{SUFFIX}")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_engine() -> None:
    """Put machine code of the sources where the packages look for it, unless it is there."""
    folder = current_folder()
    if (folder / LIBRARY).exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        compiled = _compile(".".join((folder / "engine").relative_to(ROOT).parts), scratch)
        for package in PACKAGES:
            shutil.copytree(compiled / "sim" / package, folder / package, dirs_exist_ok=True)
        shutil.copy2(compiled / folder.relative_to(ROOT) / LIBRARY, folder / "unfinished")
        (folder / "unfinished").replace(folder / LIBRARY)  # last and at once: who finds it finds all
    for outdated in set(FOLDER.iterdir()) - {folder}:
        shutil.rmtree(outdated, ignore_errors=True)


def _compile(library: str, scratch: str) -> Path:
    """All modules into one shared library of that name, and one more for each that hands its part out."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    config = Path(scratch, "mypy.ini")
    config.write_text(MYPY_CONFIG)
    modules = [str(path.relative_to(ROOT)) for path in sources() if path.name not in NOT_COMPILED]
    flags = [f"--config-file={config}", f"--cache-dir={scratch}/cache"]
    extensions = mypycify([*flags, *modules], group_name=library, target_dir=scratch, opt_level="2", debug_level="0")
    for extension in extensions:
        extension.extra_compile_args = [*extension.extra_compile_args, *ROUNDING]  # they share one list
    build = build_ext(Distribution({"ext_modules": extensions}))
    build.build_lib, build.build_temp = f"{scratch}/lib", f"{scratch}/temp"
    build.ensure_finalized()
    build.run()
    return Path(build.build_lib)


if __name__ == "__main__":
    os.chdir(ROOT)
    compile_engine()
