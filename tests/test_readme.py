from tests.readme import README, comparable, rerun


def test_the_readme_shows_what_its_examples_print() -> None:
    """Every command on the page runs and prints what stands below it; `make readme` renews the page."""
    text = README.read_text(encoding="utf-8")
    assert comparable(rerun(text)) == comparable(text)


def test_the_readme_stays_short() -> None:
    """A newcomer reads it to the end."""
    assert len(README.read_text(encoding="utf-8").splitlines()) < 200
