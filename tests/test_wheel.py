import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as its wheel installs it, without a checkout around it."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, env=os.environ | {"HATCH_BUILD_NO_HOOKS": "true"})
    (wheel,) = tmp_path.glob("servecast-*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    return tmp_path / "site"


def test_the_wheel_brings_what_there_is_and_no_tests(installed: Path) -> None:
    """A bundled GPU, model and trace are found from anywhere, with nothing but the wheel; pages have their styles and scripts."""
    assert sorted(path.name for path in installed.iterdir()) == ["servecast-0.1.0.dist-info", "sim"]
    own = sorted(path.relative_to(ROOT) for path in ROOT.glob("sim/report/page/templates/**/*.*"))
    assert len(own) > 10
    assert all((installed / path).is_file() for path in own)
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
