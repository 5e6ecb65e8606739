import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as its wheel installs it, without a checkout around it."""
    built = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(built), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, env=os.environ | {"HATCH_BUILD_NO_HOOKS": "true"})
    (wheel,) = built.glob("servecast-*.whl")
    zipfile.ZipFile(wheel).extractall(built / "site")
    return built / "site"


def test_the_wheel_brings_profiles_traces_and_catalogue(installed: Path) -> None:
    """A bundled GPU, model and trace are found from anywhere, with nothing but the wheel."""
    code = (
        "import sim, sim.specs.hardware as h; result = sim.simulate('Llama-3.1-8B', 'h100-sxm', 'chat', limit=5);"
        "print(sim.__file__, result.summary['completed'], len(h.known_gpus()))"
    )
    environment = os.environ | {"PYTHONPATH": str(installed)}
    call = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(call, env=environment, cwd=installed, check=False, capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.split() == [
        str(installed / "sim/__init__.py"),
        "5",
        str(len(list(ROOT.glob("hardware_profiles/*.yaml")))),
    ]


def test_the_wheel_holds_no_tests_and_no_private_files(installed: Path) -> None:
    """The package, its data, its metadata."""
    assert sorted(path.name for path in installed.iterdir()) == ["servecast-0.1.0.dist-info", "sim"]


def test_the_wheel_brings_the_templates_of_pages(installed: Path) -> None:
    """Styles and scripts too."""
    own = sorted(path.relative_to(ROOT) for path in ROOT.glob("sim/report/page/templates/**/*.*"))
    assert len(own) > 10
    assert all((installed / path).is_file() for path in own)
