"""The page that explains the engine."""

import doctest
from pathlib import Path


def test_its_examples_are_true() -> None:
    """Every figure on docs/engine.md is what the code says."""
    page = Path(__file__).resolve().parents[2] / "docs" / "engine.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 15
    assert result.failed == 0
