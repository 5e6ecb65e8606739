import tracemalloc
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate as simulate_fleet
from sim.engine import decode_stretches, leap_log, leap_records, narrow
from tests.engine.test_engines_agree import assert_same_records
from tests.engines import simulate
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
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


def test_rows_of_leaps_soon_become_blocks() -> None:
    """Leaps of eight steps among as many single steps, with facts as runs have them: a packed row has 88 bytes."""
    num_leaps, draw = 100_000, Random(0)  # noqa: S311
    tracemalloc.start()
    log = leap_log.LeapLog()
    for number in range(num_leaps):
        counts = (
            draw.randrange(30),
            draw.randrange(2000),
            draw.randrange(2),
            20,
            20,
            0,
            draw.randrange(20_000, 27_000),
            0,
            9,
        )
        coefficients = (number / 7, 0.01, 1e-7, 1e-9) if number % 2 else (number / 7, 0.01, 0.0, 0.0)
        log.add(leap_log.pack_leap(8 if number % 2 else 1, *counts, draw.randrange(60_000), *coefficients))
    assert sum(block.num_leaps for block in log.blocks()) == num_leaps
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 42 * num_leaps


@examples(40)
@given(workload=workloads(), num_replicas=st.integers(1, 3))
def test_leaps_are_read_part_by_part(workload: Workload, num_replicas: int) -> None:
    """In blocks of three and parts of five or all at once, and so are the stretches in which requests decoded."""
    trace, config, step_time = workload[:3]
    plan = FleetPlan.alike(config, step_time, num_replicas)
    whole = simulate_fleet(trace, plan).merged
    with (
        patch.object(leap_log, "ROWS_AT_ONCE", 3),
        patch.object(narrow, "ROWS_AT_ONCE", 2),
        patch.object(leap_records, "LEAPS_AT_ONCE", 5),
        patch.object(decode_stretches, "STRETCHES_AT_ONCE", 3),
    ):
        in_parts = simulate_fleet(trace, plan).merged
        assert_same_records(in_parts, whole)
        together, leaps = whole.leaps.whole, list(in_parts.leaps.parts())
        for name in ("start_s", "end_s", "durations_s", "first_pass", "last_pass", "num_free_blocks", "num_preempted"):
            found = [getattr(part, name) for part in leaps]
            np.testing.assert_array_equal(np.concatenate([*found, []]), getattr(together, name))
        rows = np.arange(0, len(whole.leaps), 2)
        assert in_parts.leaps.at(rows).end_s.tolist() == together.end_s[rows].tolist()


@examples(40)
@given(workload=workloads(), num_replicas=st.integers(1, 3))
def test_blocks_taken_are_told_in_order_of_the_passes(workload: Workload, num_replicas: int) -> None:
    """Whatever the parts: a pass is told once no stretch to come can lie in it."""
    trace, config, step_time = workload[:3]
    leaps = simulate_fleet(trace, FleetPlan.alike(config, step_time, num_replicas)).merged.leaps
    whole = np.concatenate(list(leaps.decode_stretches.blocks_taken(leaps.num_passes)))
    assert len(whole) == leaps.num_passes
    with patch.object(decode_stretches, "STRETCHES_AT_ONCE", 2):
        parts = list(leaps.decode_stretches.blocks_taken(leaps.num_passes))
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@examples(40)
@given(workload=workloads(), num_replicas=st.integers(1, 3), size=st.integers(1, 20))
def test_gaps_are_made_part_by_part(workload: Workload, num_replicas: int, size: int) -> None:
    """However large the parts, one after the other they are all gaps, those of late tokens and of each replica among them."""
    trace, config, step_time = workload[:3]
    plan = FleetPlan.alike(config, step_time, num_replicas)
    whole = simulate_fleet(trace, plan).merged.gaps()
    with patch.object(leap_log, "ROWS_AT_ONCE", 3):
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
