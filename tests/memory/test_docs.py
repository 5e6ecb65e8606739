"""docs/memory.md shows what its examples print; `python -m tests.memory.test_docs` renews it."""

from pathlib import Path

from tests.readme import rerun

PAGE = Path(__file__).resolve().parents[2] / "docs" / "memory.md"


def test_the_page_shows_what_its_examples_print() -> None:
    """Every command on it runs, and prints what stands below it."""
    text = PAGE.read_text(encoding="utf-8")
    assert rerun(text) == text


if __name__ == "__main__":
    PAGE.write_text(rerun(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
