"""docs/gpus.md shows what its examples print; `python -m tests.specs.test_docs` renews it."""

from pathlib import Path

from tests.readme import comparable, rerun

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpus.md"


def test_the_page_shows_what_its_examples_print() -> None:
    """Every command on it runs, and prints what stands below it."""
    text = PAGE.read_text(encoding="utf-8")
    assert comparable(rerun(text)) == comparable(text)


if __name__ == "__main__":
    PAGE.write_text(rerun(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
