"""docs/FIDELITY.md grades every file that models something, and no other."""

import re
from collections import Counter

from tests.docs.fidelity import PAGE, ROOT, head, named, renewed, sources

GRADES = {"exact", "by rule", "fitted", "assumed", "what-if", "books"}
WHOLE = ("engine", "cluster", "memory", "steptime", "specs")
"""Folders of which every file is graded."""
MODELS = re.compile(r"\b(Mirrors|Deliberate differences?)\b")


def test_every_file_that_models_something_is_graded_once() -> None:
    """A new file of these folders, or one whose head says what it mirrors, gets a row; a row whose file is gone goes."""
    graded = Counter(file for file, _ in rows())
    asked = {named(path) for path in sources() if path.relative_to(ROOT).parts[1] in WHOLE or MODELS.search(head(path))}
    assert sorted(asked - set(graded)) == [], "docs/FIDELITY.md has no row for these"
    assert [file for file in graded if not (ROOT / file).is_file()] == [], "docs/FIDELITY.md names files that are gone"
    assert [file for file, times in graded.items() if times > 1] == []


def test_grades_are_those_that_the_page_explains() -> None:
    assert {grade for _, grade in rows()} == GRADES


def test_differences_are_those_of_the_heads_of_files() -> None:
    """`python -m tests.docs.fidelity` renews them."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page


def rows() -> list[tuple[str, str]]:
    """Each file that a table names, with its grade; names are short below the heading of a folder."""
    found, folder = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
            folder = f"{title}/" if title.startswith("sim/") else ""
        elif line.startswith("| `"):
            files, grade = line.split(" | ")[:2]
            found += [(folder + name, grade) for name in re.findall(r"`([\w/.]+\.py)`", files)]
    return found
