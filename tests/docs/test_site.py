"""The site is built from these pages, and all of its links lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs.fidelity import ROOT

FETCHED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def test_every_link_and_anchor_leads_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mkdocs build --strict`, which takes a dead link, a dead anchor or a page that no menu has as an error; and nothing is fetched from elsewhere."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert [
        link for page in tmp_path.rglob("*.html") for link in FETCHED.findall(page.read_text(encoding="utf-8"))
    ] == []
