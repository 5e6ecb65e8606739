"""An engine that is looked at shows what it would if it had done all that it shows, and does not do it for that."""

import math
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.records import ClusterRecords
from sim.engine import leaps
from sim.engine.core import EngineCore
from sim.engine.recorder import Recorder
from sim.engine.records import Records
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.errors import EngineCrashError
from tests.engine.test_engines_agree import assert_same_records
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads


class Looking:
    """An engine that is fed a trace, and looked at in between: `peeks`, or is brought to the time of each look."""

    def __init__(self, workload: Workload, *, peeks: bool) -> None:
        trace, config, step_time = workload
        self.source = RequestSource(trace, config)
        self.table = RequestTable(self.source)
        self.peeks = peeks
        self.core = EngineCore(config, step_time, Recorder(self.table), start_s=0.0, num_keys=self.source.num_keys())

    def run(self, gaps_s: list[float]) -> tuple[list[object], Records]:
        """What each look shows, so long after the one before or the last request, and the records."""
        shown: list[object] = []
        for request in self.source:
            time_s = self.core.now_s if self.core.has_requests else request.arrival_s
            for gap_s in gaps_s:
                time_s += gap_s
                if time_s < request.arrival_s:
                    shown += self.look(time_s)
            self.core.advance(request.arrival_s)
            self.core.add_request(request)
        self.core.advance(math.inf)
        return shown, ClusterRecords.of([self.core.records()], self.table, (0,)).merged

    def look(self, time_s: float) -> list[object]:
        if not self.peeks:
            self.core.advance(time_s)
        return [self.core.metrics_at(time_s), self.core.load_at(time_s), self.core.now_s]


@examples(150)
@given(
    workload=workloads(),
    gaps_s=st.lists(st.sampled_from([0.5, 1.0, 3.0, 17.0]), min_size=1, max_size=6),
    panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))),
)
def test_a_look_shows_what_is_and_changes_nothing(
    workload: Workload, gaps_s: list[float], panel_bits: tuple[int, ...]
) -> None:
    """Metrics, loads and times of two engines, one of which does its passes for each look; and all that they leave."""
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        try:
            shown, records = Looking(workload, peeks=True).run(gaps_s)
        except EngineCrashError:
            return
        expected, others = Looking(workload, peeks=False).run(gaps_s)
    assert shown == expected
    assert_same_records(records, others)


def test_looks_cut_a_leap_once_at_most() -> None:
    """Near its end. Two requests of 400 tokens, the second 300 s after the first, which is looked at every second until then."""
    workload = Workload(make_trace([Ask("A", 60, 400), Ask("B", 60, 400, at=300)]), make_config(), ONE_SECOND)
    _, peeked = Looking(workload, peeks=True).run([1.0] * 300)
    _, brought = Looking(workload, peeks=False).run([1.0] * 300)
    _, neither = Looking(workload, peeks=True).run([])
    assert len(peeked.leaps) <= 2 * len(neither.leaps) < len(brought.leaps) - 250
