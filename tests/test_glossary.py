"""The glossary names files that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_word_lives_somewhere() -> None:
    named = re.findall(r"`(sim/[\w/]+\.py)` \|$", (ROOT / "GLOSSARY.md").read_text(), re.MULTILINE)
    assert len(named) > 29
    assert [path for path in named if not (ROOT / path).is_file()] == []
