"""Whether a P99 is too uncertain to use: its interval is wide because of a queue or for lack of similar measured runs."""

from collections.abc import Mapping
from math import log
from typing import Any, NamedTuple

from sim.measure.confidence import Bands
from sim.measure.intervals import intervals

P99S = {"p99_ttft_ms": "P99 TTFT", "p99_tpot_ms": "P99 TPOT", "p99_itl_ms": "P99 ITL", "p99_e2el_ms": "P99 E2EL"}
WIDE = 2.0  # ends of a P99's interval farther apart than this factor come from a queue, not from step times
QUEUE_GROWTH = 2.0  # a latency that grows so much faster than step times waits in a queue
Figures = Mapping[str, Any]


class Wide(NamedTuple):
    """A P99 whose interval is WIDE; `queues` where it grows so much faster than the step times."""

    name: str
    queues: bool


def widest(point: Figures, low: Figures, high: Figures, bands: Bands) -> Wide | None:
    """The P99 with the widest interval from these replays, those that queue first; None if none is WIDE."""
    found = intervals(point, low, high, bands)
    spans = {name: found[name][1] / found[name][0] for name in P99S if name in found and found[name][0] > 0}
    wide = {name: span for name, span in spans.items() if span > WIDE}
    if not wide:
        return None
    growth = {name: log(high[name] / low[name]) / (2 * bands.step) for name in wide if low[name] and high[name]}
    name = max(wide, key=lambda name: (growth.get(name, 0.0) > QUEUE_GROWTH, wide[name]))
    return Wide(name, growth.get(name, 0.0) > QUEUE_GROWTH)
