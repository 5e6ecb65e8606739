"""Compiles the engine with mypyc while a wheel is built: the same sources, the same bytes, two to three times as fast.

Editable installs are interpreted. Where there is no C compiler a warning says so and the wheel is pure Python, but for
wheels that cibuildwheel makes to be published; HATCH_BUILD_NO_HOOKS=true asks for a pure one.
"""

import gc
import os
import sys
import tempfile
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from shutil import copyfile
from textwrap import shorten
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("sim/engine", "sim/engine/walking", "sim/steptime")
FILES = tuple(
    f"sim/cluster/{name}.py"
    for name in ("course", "endless", "listened", "routers/metric_scores", "routers/prefix_index", "routers/stretches")
)
"""What replicas and routers do for every request; it knows nothing of SimPy. Not the tree of prompts, whose numbers would not be shared: 150 bytes a request."""
NOT_COMPILED = ("linear.py", "queues.py", "shortest_job.py", "fair_share.py")
"""mypyc knows neither pydantic's classes nor lists with methods of one's own."""
OPT_LEVEL = os.environ.get("SERVECAST_OPT_LEVEL", "2")
"""Of the C compiler. At 1 it is done in half the time, and the engine does the same a little slower."""
ROUNDING = [] if os.name == "nt" else ["-ffp-contract=off"]
"""A product and a sum are rounded each for itself, as Python does it, also where one instruction could do both."""
UNWARNED = [] if os.name == "nt" else ["-Wno-misleading-indentation"]
"""Looking for it in one file of 300,000 lines takes gcc as long as all else that it does at -O1."""
LOCAL = [] if os.name == "nt" else ["-fno-semantic-interposition"]
"""Functions of the library call each other at once: nobody puts others in their place."""
FLAGS = [*ROUNDING, *UNWARNED, *LOCAL]
MYPY_CONFIG = """
[mypy]
ignore_missing_imports = true
[mypy-pandas.*,pydantic.*,transformers.*,huggingface_hub.*,sim.api,sim.search.*]
follow_imports = skip
follow_imports_for_stubs = true
"""


class EngineBuildHook(BuildHookInterface[Any]):
    """Adds the engine's machine code to a wheel, beside its sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._scratch = tempfile.TemporaryDirectory()
        try:
            with redirect_stdout(sys.stderr):
                built = compile_engine(Path(self.root), Path(self._scratch.name))
        except (Exception, SystemExit) as error:
            self._scratch.cleanup()
            if os.environ.get("CIBUILDWHEEL"):
                raise
            reason = shorten(str(error).strip().split("\n")[-1], 200)
            self.app.display_warning(f"The engine could not be compiled and will be interpreted: {reason}")
            return
        build_data["force_include"] |= {
            str(path): path.relative_to(built).as_posix() for path in sorted(built.rglob("*")) if path.is_file()
        }
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - the hook's interface
        if version != "editable":
            self._scratch.cleanup()


def modules(root: Path) -> list[Path]:
    """What is compiled."""
    found = (path for package in PACKAGES for path in root.joinpath(package).glob("*.py"))
    of_packages = [path for path in found if path.name not in ("__init__.py", *NOT_COMPILED)]
    return sorted([*of_packages, *(root / file for file in FILES)])


def compile_engine(root: Path, scratch: Path) -> Path:
    """A folder with one shared library, and a small one for each module that hands out its part of it."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    config = scratch / "mypy.ini"
    config.write_text(MYPY_CONFIG)
    flags = [f"--config-file={config}", f"--cache-dir={scratch}/cache"]
    sources = [str(path.relative_to(root)) for path in modules(root)]
    extensions = mypycify(
        [*flags, *sources], group_name="sim._engine", target_dir=str(scratch), opt_level=OPT_LEVEL, debug_level="0"
    )
    gc.freeze()  # mypyc's trees, through which Python would otherwise look for ten seconds when it ends
    for extension in extensions:
        extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]  # they share one list
    library, *parts = extensions
    folders = groupby(sorted(parts, key=lambda part: part.name), key=lambda part: part.name.rpartition(".")[0])
    in_folder = [list(parts) for _, parts in folders]
    build = build_ext(Distribution({"ext_modules": [library, *(joined(parts) for parts in in_folder)]}))
    build.build_lib, build.build_temp = str(scratch / "lib"), str(scratch / "temp")
    build.ensure_finalized()
    build.run()
    for first, *others in in_folder:
        for part in others:
            copyfile(build.get_ext_fullpath(first.name), build.get_ext_fullpath(part.name))
    return scratch / "lib"


def joined(parts: list[Any]) -> Any:
    """One library that hands out all of a folder's modules, by mypyc's own function; it is compiled once, and then copied under each one's name."""
    first = parts[0]
    source = Path(first.sources[0])
    init, library = f"init_{first.name.replace('.', '___')}", "sim._engine__mypyc"
    hand_out = source.read_text(encoding="utf-8").partition("\n// distutils")[0]
    for one, any_one in (
        (
            f"PyMODINIT_FUNC\nPyInit_{first.name.rpartition('.')[2]}(void)",
            "static PyObject *hand_out(const char *init, const char *capsule_name)",
        ),
        (f'"{library}.{init}"', "capsule_name"),
        (f'"{init}"', "init"),
    ):
        assert one in hand_out, one
        hand_out = hand_out.replace(one, any_one)
    inits = [
        f'PyMODINIT_FUNC PyInit_{name.rpartition(".")[2]}(void) {{ return hand_out("init_{full}", "{library}.init_{full}"); }}'
        for name, full in ((part.name, part.name.replace(".", "___")) for part in parts)
    ]
    source.write_text("\n".join([hand_out, *inits, ""]), encoding="utf-8")
    return first
