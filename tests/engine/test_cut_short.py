"""Runs that end before their requests do: nothing is made up about those that still ran or waited."""

from unittest.mock import patch

import numpy as np
import pytest
import simpy
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster.gateway import Gateway
from sim.cluster.routers.simple import TheOnlyOne
from sim.cluster.simulation import Member, serve_open
from sim.engine import leaps
from sim.engine.core import EngineCore
from sim.engine.recorder import Recorder
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from tests.conformance.case import Case
from tests.conformance.engines import run_fast, run_reference
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads


@examples(100)
@given(workload=workloads(), max_passes=st.integers(1, 60), panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))))
def test_engines_agree_on_what_was_done_when_they_are_stopped(
    workload: Workload, max_passes: int, panel_bits: tuple[int, ...]
) -> None:
    """After so many passes: who had been scheduled, who had a first token, how many, and who had finished."""
    trace, config, step_time = workload
    assume(not RequestSource(trace, config).rejected)
    case = Case(trace, config, step_time, max_passes, {})
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        fast, naive = run_fast(case), run_reference(case)
    assert fast.steps == naive.steps
    assert fast.requests == naive.requests


def test_a_prompt_that_fills_the_budget_is_stopped_too() -> None:
    """Five of its ten chunks."""
    case = Case(make_trace([Ask("A", 40, 1)]), make_config(max_num_batched_tokens=4), ONE_SECOND, 5, {})
    assert [step["n"] for step in run_fast(case).steps] == [step["n"] for step in run_reference(case).steps] == [4] * 5


STARVING = {
    "max_num_batched_tokens": 8,
    "max_num_scheduled_tokens": 4,
    "long_prefill_token_threshold": 1,
    "long_prefill_token_threshold_adaptive": True,
}
"""When C has ended, A may have 8 // 2 tokens, all of the budget; B starves in passes 5 to 7."""


@pytest.mark.parametrize("max_passes", range(4, 10))
def test_a_late_token_that_is_still_due_leaves_no_gap(max_passes: int) -> None:
    """B's sixth token comes in pass 8, 4 s after its fifth, if the run goes that far."""
    trace = make_trace([Ask("A", 24, 1), Ask("B", 1, 6), Ask("C", 1, 4)])
    config = make_config(**STARVING)
    source = RequestSource(trace, config)
    table = RequestTable(source)
    recorder = Recorder(table)
    core = EngineCore(config, ONE_SECOND, recorder, start_s=0.0, max_passes=max_passes)
    env = simpy.Environment()
    serve_open(env, [Member(core)], Gateway(env, TheOnlyOne()), source)
    records = recorder.records(core.state)
    num_generated = table.records().generated_tokens
    gaps = np.repeat(*records.gaps())
    assert (gaps > 1).tolist().count(True) == (max_passes >= 9)
    assert len(gaps) == np.maximum(0, num_generated - 1).sum()
