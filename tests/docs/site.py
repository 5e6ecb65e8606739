"""The hook of mkdocs.yml: pages of the repository that stand outside of docs/, notebooks, and links that hold on the site as they do in the repository."""

import os
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.docs.notebooks import PATHS, as_markdown

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "GLOSSARY.md": "glossary.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "traces/README.md": "bundled_traces.md",
}
"""Where the site has pages that do not stand in docs/."""
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^()#\s]+)(#[^()\s]*)?\)")
LIST_UNDER_TEXT = re.compile(r"^((?![-*|] |1\. | |#|$).*)\n(?=(?:[-*]|1\.) )", re.MULTILINE)
"""GitHub begins a list there, Python-Markdown asks for an empty line."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, place in ELSEWHERE.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text(encoding="utf-8")))
    for notebook in PATHS:
        content = as_markdown(notebook.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    place = PurePosixPath(page.file.src_uri)
    path = next((path for path, other in ELSEWHERE.items() if other == str(place)), f"docs/{place}")

    def in_text(text: str) -> str:
        linked = LINK.sub(lambda link: site_link(link, PurePosixPath(path), place), text)
        return LIST_UNDER_TEXT.sub(r"\1\n\n", linked)

    return outside_fences(markdown, in_text)


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The page with its text changed and its examples as they are."""
    ends = [0, *(end for fence in FENCE.finditer(markdown) for end in fence.span()), len(markdown)]
    parts = [markdown[start:end] for start, end in pairwise(ends)]
    return "".join(change(part) if number % 2 == 0 else part for number, part in enumerate(parts))


def site_link(link: re.Match[str], path: PurePosixPath, place: PurePosixPath) -> str:
    """The link as the site has it, from the page at that place; its text alone where it leads to a file that is no page."""
    target = os.path.normpath(path.parent / link[2])
    within = re.sub(r"\.ipynb$", ".md", ELSEWHERE.get(target) or target.removeprefix("docs/"))
    if within == target and (ROOT / target).exists():
        return link[1]
    return f"[{link[1]}]({os.path.relpath(within, place.parent)}{link[3] or ''})"
