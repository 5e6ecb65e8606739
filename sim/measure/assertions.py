"""What must hold of a run's figures: `p99_ttft_ms<500`, `prefix_cache_hit_rate>=80%`, or `p99_ttft_ms<=1.05x` against a baseline."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

from sim.errors import ConfigError, listed, nearest
from sim.measure.finished import Finished
from sim.metrics.units import Scales, scales_of, unit_of

FORM = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")
HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}
TIMES = "x"  # a bound that is so many times the baseline's figure


class Assertion(NamedTuple):
    """`metric` is compared with `bound`, in the metric's own unit; times the baseline's figure if it `is_relative`."""

    text: str
    metric: str
    sign: str
    bound: float
    is_relative: bool

    @classmethod
    def parse(cls, text: str, known: Iterable[str]) -> Self:
        """Raises ConfigError for another form, a metric that no run has, and a unit that it is not measured in."""
        found = FORM.fullmatch(text)
        if not found:
            raise ConfigError(
                f"--assert must be a metric, one of {', '.join(HOLDS)}, and a number, such as 'p99_ttft_ms<500' or 'p99_ttft_ms<=1.05x', got {text!r}."
            )
        metric, sign, number, unit = found.groups()
        names = list(known)
        if metric not in names:
            raise ConfigError(f"--assert {text!r}: {metric!r} is no figure of these runs.{nearest(metric, names)}")
        if unit == TIMES:
            return cls(text, metric, sign, float(number), is_relative=True)
        return cls(text, metric, sign, float(number) * _scale(text, metric, unit), is_relative=False)


def _scale(text: str, metric: str, unit: str) -> float:
    scales: Scales = scales_of(metric)
    if unit and unit not in scales:
        units = listed([*scales, f"{TIMES} (times the baseline)"], "or")
        raise ConfigError(f"--assert {text!r}: {metric} is measured in {units}, got {unit!r}.")
    return scales[unit] if unit else 1.0


class Judged(NamedTuple):
    """What an assertion found in a run: its figure, None where the run has none, and what that is compared with.

    What was not measured does not hold.
    """

    run: str
    assertion: Assertion
    value: float | None
    bound: float | None

    @property
    def holds(self) -> bool:
        if self.value is None or self.bound is None:
            return False
        return HOLDS[self.assertion.sign](self.value, self.bound)

    @property
    def text(self) -> str:
        """One line."""
        verdict = "holds" if self.holds else "fails"
        if self.value is None or self.bound is None:
            return f"{self.run}: {self.assertion.text} {verdict}, for it was not measured."
        unit = unit_of(self.assertion.metric)
        base = f"{self.bound:,.6g}" if self.assertion.is_relative else ""
        found = " ".join(filter(None, (f"{self.value:,.6g}", unit, base and f"against {base}", base and unit)))
        return f"{self.run}: {self.assertion.text} {verdict}: {found}."


def judge(assertion: Assertion, run: Finished, baseline: Finished | None) -> Judged:
    """Raises ConfigError for a bound that is relative where there is no baseline."""
    value, bound = run.figures.get(assertion.metric), assertion.bound
    if not assertion.is_relative:
        return Judged(run.name, assertion, value, bound)
    if baseline is None:
        raise ConfigError(f"--assert {assertion.text!r} is relative to a baseline; give one with --baseline.")
    base = baseline.figures.get(assertion.metric)
    return Judged(run.name, assertion, value, None if base is None else bound * base)
