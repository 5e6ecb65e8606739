"""The part of docs/FIDELITY.md that the heads of files say: `python -m tests.docs.fidelity` writes it, test_fidelity.py compares."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "FIDELITY.md"
LAST = "## Deliberate differences\n"
HEAD = re.compile(r'"""(.*?)"""', re.DOTALL)
DIFFERENCE = re.compile(r"Deliberate\s+differences?:\s*(.*?)(?=\n\n|\Z)", re.DOTALL)


def renewed(page: str) -> str:
    """The page with its last part as the heads of files have it now."""
    kept, last, rest = page.partition(LAST)
    says = rest.strip().split("\n\n")[0]
    return f"{kept}{last}\n{says}\n\n" + "".join(f"- `{path}`: {text}\n" for path, text in differences())


def differences() -> list[tuple[str, str]]:
    """File and what it does otherwise, in order of files."""
    found = ((path, DIFFERENCE.search(head(path))) for path in sources())
    return [(named(path), " ".join(said[1].split())) for path, said in found if said]


def sources() -> list[Path]:
    return sorted(path for path in ROOT.glob("sim/**/*.py") if path.name != "__init__.py")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def head(path: Path) -> str:
    said = HEAD.match(path.read_text(encoding="utf-8"))
    return said[1] if said else ""


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
