from tests.docs.reference import FOLDER, pages


def test_the_reference_says_what_the_code_does() -> None:
    """`python -m tests.docs.reference` renews it."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == pages()
