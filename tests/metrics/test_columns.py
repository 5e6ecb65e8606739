import numpy as np
import pytest

from sim.metrics.columns import request_columns, step_columns
from sim.metrics.step_parts import step_parts
from tests.metrics.makers import DISPATCH, Life, Step, make_leaps, make_records, make_trace
from tests.search.makers import STEPS

RECORDS = make_records(
    Life(arrival_s=1.0, first_scheduled_s=1.25, first_token_s=2.0, finish_s=4.0, output_tokens=3, num_preemptions=2),
    Life(arrival_s=2.0, rejected="prompt too long"),
)


def test_request_columns_derive_latencies_from_times() -> None:
    """Queued 250 ms, first token after 1,000 ms, 1,000 ms a further token, 3,000 ms in all."""
    columns = request_columns(make_trace(RECORDS), RECORDS.requests)
    row = {name: column[0] for name, column in columns.items()}
    assert (row["request_id"], row["num_preemptions"], row["rejected"]) == ("r0", 2, None)
    timed = [row[name] for name in ("queue_time_ms", "ttft_ms", "tpot_ms", "e2el_ms")]
    assert timed == pytest.approx([250, 1000, 1000, 3000])


def test_a_rejected_request_keeps_its_row_with_the_reason() -> None:
    """It has an arrival and a reason, and no latency."""
    columns = request_columns(make_trace(RECORDS), RECORDS.requests)
    assert (columns["arrival_s"][1], columns["rejected"][1]) == (2.0, "prompt too long")
    assert np.isnan(columns["ttft_ms"][1])


def test_session_ids_stand_only_where_the_trace_has_them() -> None:
    """No column of blanks for a trace without sessions."""
    assert "session_id" not in request_columns(make_trace(RECORDS), RECORDS.requests)
    with_sessions = request_columns(make_trace(RECORDS, session_id=("a", "b")), RECORDS.requests)
    assert with_sessions["session_id"] == ("a", "b")


def test_step_columns_give_kv_usage_as_a_share_of_usable_blocks() -> None:
    """5 of 10 usable blocks free is half full."""
    steps = make_leaps(Step(0.0, 0.5, num_free_blocks=5)).steps()
    columns = step_columns(steps, step_parts(steps, STEPS), num_gpu_blocks=11, dispatch=DISPATCH)
    assert columns["kv_cache_usage"][0] == pytest.approx(0.5)
