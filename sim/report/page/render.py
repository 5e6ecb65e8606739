"""Pages as HTML: one file with styles, scripts and figures in it.

plotly's own bundle, as installed, is in it compressed, which browsers since 2023 unpack (DecompressionStream): 2 MB in place of 4.8.
"""

import gzip
from base64 import b64encode
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.report.figures.theme import DARK, LIGHT, template
from sim.report.page.blocks import Page
from sim.report.tables import cell_text
from sim.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
LEVEL = 6
"""Of compression: 9 takes a third more time and saves a five-hundredth."""


def write_page(path: Path, page: Page) -> None:
    """The same bytes for the same page."""
    path.write_text(html_of(page), encoding="utf-8", newline="\n")


def html_of(page: Page) -> str:
    """The whole file."""
    return rendered("page.html", page=page, plotly=_plotly())


def rendered(name: str, *folders: Path, **values: Any) -> str:
    """A template with these values and what all charts need; also one of further folders, which may include those of pages."""
    return _environment(*folders).get_template(name).render(
        **values,
        numbers=count(1),
        templates={"light": template(LIGHT), "dark": template(DARK)},
        version=__version__,
    )  # fmt: skip


@cache
def _environment(*folders: Path) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"cell": cell_text, "next_number": next}
    return environment


def plotly_file() -> Path:
    """plotly.js as its package has it."""
    found = find_spec("plotly")
    assert found is not None, "plotly is a dependency"
    assert found.origin is not None, "plotly is a package with files"
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


@cache
def _plotly() -> str:
    """plotly.js, compressed, in base64."""
    return b64encode(gzip.compress(plotly_file().read_bytes(), LEVEL, mtime=0)).decode()
