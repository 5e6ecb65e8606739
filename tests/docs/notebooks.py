"""Notebooks run without Jupyter: `python -m tests.docs.notebooks` writes down their outputs, test_notebooks.py compares."""

import ast
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))


def renewed(text: str) -> str:
    """The notebook with the text outputs that its cells have now, run in order in one namespace."""
    notebook, names = json.loads(text), {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with patch.dict("os.environ", COLUMNS="100"):
        for number, cell in enumerate(cells, 1):
            cell |= {"execution_count": number, "outputs": outputs("".join(cell["source"]), names, number)}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What the cell prints, and what its last expression is."""
    tree = ast.parse(source)
    last = None
    if isinstance(end := tree.body[-1], ast.Expr):
        tree.body.pop()
        last = ast.Expression(end.value)
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the notebook's own code
        value = eval(compile(last, "cell", "eval"), names) if last else None  # noqa: S307 - as above
    found: list[dict[str, Any]] = []
    if said := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": lines(said)})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def as_markdown(text: str) -> str:
    """The notebook as a page of the site."""
    return "\n\n".join(block for cell in json.loads(text)["cells"] for block in blocks(cell)) + "\n"


def blocks(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    texts = ["".join(output.get("text") or output["data"]["text/plain"]).rstrip() for output in cell["outputs"]]
    return [f"```python\n{source}\n```", *(f"```text\n{text}\n```" for text in texts)]


if __name__ == "__main__":
    for path in PATHS:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
