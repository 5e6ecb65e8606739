from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given

from sim.engine import recorder, records
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
    assert found.itl_s[found.itl_count != 0].tolist() == [1.0, 1.0]
    assert found.itl_count[found.itl_count != 0].tolist() == [num_decodes, num_decodes]
    assert int(found.itl_count.sum()) == 2 * num_decodes


def test_columns_of_leaps_keep_no_rows_alive() -> None:
    """Rows hold times besides, as much again, that nobody needs once the run is over."""
    leaps = simulate(make_trace([Ask("A", 4, 20)]), make_config(), ONE_SECOND).leaps
    assert [column.base for column in (leaps.start_s, leaps.num_steps, leaps.num_free_blocks)] == [None] * 3


@examples(40)
@given(workload=workloads())
def test_leaps_are_expanded_part_by_part(workload: Workload) -> None:
    """Three at a time or all at once, and so are the stretches in which requests decoded."""
    with patch.object(recorder, "LEAPS_AT_ONCE", 3), patch.object(records, "STRETCHES_AT_ONCE", 3):
        in_parts = simulate(*workload)
        taken = in_parts.leaps.decode_stretches.blocks_taken(len(in_parts.leaps.step_end_s))
    whole = simulate(*workload)
    assert_same_records(in_parts, whole)
    np.testing.assert_array_equal(taken, whole.leaps.decode_stretches.blocks_taken(len(taken)))


def test_a_run_in_which_nothing_can_run_has_no_steps() -> None:
    """The only prompt is longer than the model's context."""
    found = simulate(make_trace([Ask("A", 2000, 1)]), make_config(), ONE_SECOND)
    assert found.requests.rejected[0] is not None
    assert (len(found.leaps), len(found.steps), len(found.itl_s)) == (0, 0, 0)
