"""The Python examples of the optimizer's page run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "optimizer.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.splitlines()[0] for example in EXAMPLES])
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own assertions hold; what it writes stays in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102
