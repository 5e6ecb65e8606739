"""What one touches to add a thing is what CONTRIBUTING.md says."""

from tests.contributing import PAGE, renewed
from tests.readme import comparable


def test_each_patch_does_what_the_page_shows() -> None:
    """Each addition, patched into a copy of the tree, stands in what the commands print."""
    assert comparable(renewed()) == comparable(PAGE.read_text(encoding="utf-8"))
