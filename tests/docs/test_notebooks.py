from pathlib import Path

import pytest

from tests.docs.notebooks import PATHS, renewed


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give(path: Path) -> None:
    """`python -m tests.docs.notebooks` renews them."""
    text = path.read_text(encoding="utf-8")
    assert renewed(text) == text
