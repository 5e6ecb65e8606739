"""A value of any kind in any place of a file ends in a trace or in one sentence, never in a traceback."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import SimError
from sim.workload.readers import read_trace
from tests.properties import examples
from tests.workload import test_measured as measured
from tests.workload import test_published as published
from tests.workload.test_sharegpt import talk

JSON_FILES: dict[str, Any] = {
    "bailian": published.BAILIAN,
    "batch": published.BATCH,
    "llmservingsim": published.LLMSERVINGSIM,
    "otlp": [measured.exported(measured.GATEWAY, measured.ROUTED, measured.FIRST, measured.SECOND)],
    "lifecycle": measured.LIFECYCLE,
    "guidellm": [measured.GUIDELLM],
    "sharegpt": [talk("a", 10, 20), talk("b", 9, 8, 7)],
    "by columns": [{"t": 1, "in": {"p": 2}, "o": 3}, {"t": 2, "in": {"p": 2}, "o": 3, "x": 0}],
}
TEXTS = {
    "burstgpt": published.BURSTGPT,
    "servegen": published.SERVEGEN,
    "old log": measured.OLD_LOG,
    "new log": measured.NEW_LOG,
}
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 7, 2.5, 10**400, 1e308, float("nan"), "", "x", "7", "\ud800", [], [1], ["x"], [[]], {}, {"a": 1}, [{}], {"intValue": {}},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All that can be replaced, and what holds it."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def changed(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """A copy with another value in that place."""
    copy = json.loads(json.dumps(value))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return copy


def is_read_or_refused(text: str, columns: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "t")
        file.write_text(text, encoding="utf-8", errors="surrogatepass")
        with suppress(SimError):
            read_trace(file, columns=columns)


@pytest.mark.parametrize("name", JSON_FILES)
@given(data=st.data())
@examples(120)
def test_odd_values_of_json(name: str, data: st.DataObject) -> None:
    """One or two of them, in an array and in lines."""
    rows = JSON_FILES[name]
    for _ in range(data.draw(st.integers(1, 2))):
        rows = changed(rows, data.draw(st.sampled_from(list(places(rows)))), data.draw(st.sampled_from(ODD)))
    columns = "arrival=t,prompt=in.p,output=o" if name == "by columns" else None
    is_read_or_refused(json.dumps(rows), columns)
    is_read_or_refused("".join(json.dumps(row) + "\n" for row in rows), columns)


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
@examples(60)
def test_odd_text(name: str, data: st.DataObject) -> None:
    """A few characters that are gone, doubled or other ones."""
    text = TEXTS[name]
    at = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(at, min(at + 12, len(text))))
    is_read_or_refused(
        text[:at] + data.draw(st.sampled_from(["", "[", '"', ",", "\n", "-", "9" * 30, "é"])) + text[end:]
    )
