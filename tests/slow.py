"""Tests that take over a quarter of a second of CPU, which conftest.py reads in slow.txt, and the seconds.

`EXAMPLES=0.2 python -m tests.slow` writes it again; `... tests.slow tests/search tests/test_api.py` what it says of those.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")
SLOW_S = 0.25


def slow_tests() -> list[str]:
    """Functions as pytest names them, without parameters; the slowest first."""
    return list(listed_s())


def listed_s() -> dict[str, float]:
    """What each took when it was measured."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {name: float(cpu_s) for cpu_s, name in (line.split() for line in lines)}


def merged_s(listed_s: Mapping[str, float], measured_s: Mapping[str, float]) -> dict[str, float]:
    """The slow ones, slowest first, where what is listed of files that were measured is forgotten."""
    files = {name.split("::")[0] for name in measured_s}
    others_s = {name: cpu_s for name, cpu_s in listed_s.items() if name.split("::")[0] not in files}
    both_s = others_s | {name: cpu_s for name, cpu_s in measured_s.items() if cpu_s > SLOW_S}
    return dict(sorted(both_s.items(), key=lambda entry: -entry[1]))


def function(item: pytest.Item) -> str:
    """The name of a test, whatever its parameters."""
    return item.nodeid.split("[")[0]


class Stopwatch:
    """Adds up what each function takes, its children included."""

    def __init__(self) -> None:
        self.cpu_s: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begin_s = sum(os.times()[:4])
        result = yield
        self.cpu_s[function(item)] += sum(os.times()[:4]) - begin_s
        return result


if __name__ == "__main__":
    watch = Stopwatch()
    status = pytest.main(["-q", *sys.argv[1:]], plugins=[watch])
    if not status:
        taken_s = merged_s(listed_s(), watch.cpu_s)
        LIST.write_text("".join(f"{cpu_s:.1f} {name}\n" for name, cpu_s in taken_s.items()))
    sys.exit(status)
