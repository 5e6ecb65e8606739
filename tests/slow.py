"""Tests that take over half a second of CPU. `EXAMPLES=0.2 python -m tests.slow` writes slow.txt, which conftest.py reads."""

import os
import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

LIST = Path(__file__).with_suffix(".txt")
SLOW_S = 0.5


def slow_tests() -> list[str]:
    """Functions as pytest names them, without parameters; the slowest first."""
    return LIST.read_text(encoding="utf-8").split()


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
    slowest_first = sorted(watch.cpu_s.items(), key=lambda entry: -entry[1])
    if not status:
        LIST.write_text("".join(f"{name}\n" for name, cpu_s in slowest_first if cpu_s > SLOW_S))
    sys.exit(status)
