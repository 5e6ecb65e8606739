from pathlib import Path

import pytest

from tests.readme import PAGES, README, comparable, rerun


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_shows_what_its_examples_print(page: Path) -> None:
    """Every command on it runs and prints what stands below it; `make readme` renews the pages."""
    text = page.read_text(encoding="utf-8")
    assert comparable(rerun(text)) == comparable(text)


def test_the_readme_stays_short() -> None:
    """A newcomer reads it to the end."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 200
