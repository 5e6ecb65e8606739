import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate as simulate_fleet
from sim.engine import leap_log, records, token_gaps
from tests.engine.test_engines_agree import assert_same_records
from tests.engines import simulate
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import examples
from tests.workloads import Workload, workloads


@pytest.mark.parametrize("num_decodes", [1, 127, 128, 129, 32_767, 32_768])
def test_gaps_are_counted_whole_however_many_decode_at_once(num_decodes: int) -> None:
    """All ask for three tokens at once, and so each has two gaps of a second."""
    trace = make_trace([Ask(f"r{row}", 1, 3) for row in range(num_decodes)])
    config = make_config(max_num_seqs=num_decodes, max_num_batched_tokens=num_decodes, num_gpu_blocks=num_decodes + 1)
    found = simulate(trace, config, ONE_SECOND)
    gap_s, count = found.gaps()
    assert gap_s[count != 0].tolist() == [1.0, 1.0]
    assert count[count != 0].tolist() == [num_decodes, num_decodes]
    assert int(count.sum()) == 2 * num_decodes


def test_rows_of_leaps_soon_become_columns() -> None:
    """Rows hold more than is kept: at no time are there many of them."""
    num_leaps, row = 100_000, leap_log.pack_leap(*range(1, 16))
    tracemalloc.start()
    log = leap_log.LeapLog()
    for _ in range(num_leaps):
        log.add(row)
    assert len(log.columns()["start_s"]) == num_leaps
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < num_leaps * len(row)


@examples(40)
@given(workload=workloads())
def test_leaps_are_expanded_part_by_part(workload: Workload) -> None:
    """Three at a time or all at once, and so are the stretches in which requests decoded."""
    with patch.object(leap_log, "LEAPS_AT_ONCE", 3), patch.object(records, "STRETCHES_AT_ONCE", 3):
        in_parts = simulate(*workload)
        taken = in_parts.leaps.decode_stretches.blocks_taken(len(in_parts.leaps.step_end_s))
    whole = simulate(*workload)
    assert_same_records(in_parts, whole)
    np.testing.assert_array_equal(taken, whole.leaps.decode_stretches.blocks_taken(len(taken)))


@examples(40)
@given(workload=workloads(), num_replicas=st.integers(1, 3), size=st.integers(1, 20))
def test_gaps_are_made_part_by_part(workload: Workload, num_replicas: int, size: int) -> None:
    """However large the parts, one after the other they are all gaps, those of late tokens and of each replica among them."""
    trace, config, step_time = workload[:3]
    plan = FleetPlan.alike(config, step_time, num_replicas)
    whole = simulate_fleet(trace, plan).merged.gaps()
    with patch.object(token_gaps, "LEAPS_AT_ONCE", 3):
        gaps = simulate_fleet(trace, plan).merged.gaps
        parts = [gaps.part(first, first + size) for first in range(0, len(gaps), size)]
    assert all(len(part.times_s) == size for part in parts[:-1])
    for name in ("times_s", "counts"):
        together = np.concatenate([getattr(part, name) for part in (gaps.part(0, 0), *parts)])
        np.testing.assert_array_equal(together, getattr(whole, name))


def test_a_run_in_which_nothing_can_run_has_no_steps() -> None:
    """The only prompt is longer than the model's context."""
    found = simulate(make_trace([Ask("A", 2000, 1)]), make_config(), ONE_SECOND)
    assert found.requests.rejected[0] is not None
    assert (len(found.leaps), len(found.steps), len(found.gaps().times_s)) == (0, 0, 0)
