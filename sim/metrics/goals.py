"""What can be optimised: figures of the summary, each to be made as large or as small as possible."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Metrics = Mapping[str, Any]


class Goal(NamedTuple):
    """A figure under its `key` in the summary; `unit` is that of scores in text, `title` stands in plots."""

    name: str
    key: str
    is_maximised: bool
    unit: str
    title: str

    def loss(self, metrics: Metrics) -> float:
        """The figure with the sign that makes less better; infinite where there was nothing to measure."""
        value = metrics.get(self.key)
        if value is None:
            return float("inf")
        return -float(value) if self.is_maximised else float(value)


GOALS: Mapping[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal("throughput", "output_throughput", True, "tok/s", "output tok/s"),
        Goal("latency", "p99_e2el_ms", False, "ms", "P99 end to end (ms)"),
        Goal("goodput", "request_goodput", True, "req/s", "requests/s within limits"),
        Goal(
            "cost",
            "usd_per_million_output_tokens",
            False,
            "$ per million output tokens",
            "$ per million output tokens",
        ),
    )
}
