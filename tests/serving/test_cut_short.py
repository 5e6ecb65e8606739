"""Runs that end before their requests do: nothing is made up about those that still ran or waited."""

from unittest.mock import patch

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.serving import leaps
from sim.serving.front_door import Incoming
from tests.conformance.case import Case
from tests.conformance.engines import LogRow, Run, run_fast, run_reference
from tests.workloads import Workload, workloads


@settings(max_examples=150)
@given(workload=workloads(), max_passes=st.integers(1, 60), panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))))
def test_engines_agree_on_what_was_done_when_they_are_stopped(
    workload: Workload, max_passes: int, panel_bits: tuple[int, ...]
) -> None:
    """After so many passes: who had been scheduled, who had a first token, how many, and who had finished."""
    trace, config, step_time = workload
    assume(not Incoming(trace, config).rejected)
    case = Case("drawn", trace, config, step_time, max_passes, {})
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        fast, naive = run_fast(case), run_reference(case)
    assert fast.steps == naive.steps
    assert told(fast) == told(naive)


def told(run: Run) -> dict[str, LogRow]:
    """Lives, without the first token's time where it has not come back: the fast engine tells that of the batch in flight."""
    return {
        name: life | {"first_token_ns": life["first_token_ns"] if life["n_out"] else None}
        for name, life in run.requests.items()
    }
