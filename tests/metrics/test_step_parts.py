"""Each step of a run has its parts, told from what the records say that it computed."""

import numpy as np
import pytest
from hypothesis import given, settings

import sim
from sim.metrics.step_parts import step_parts
from sim.specs.engine import EngineConfig
from sim.specs.models import load_model
from sim.steptime.protocol import DecodeCurve, StepShape, StepTimeModel
from tests.engines import simulate
from tests.search.makers import STEPS
from tests.steptime.test_roofline import COMPOSITIONS, steps
from tests.workloads import Workload, workloads

TIMED = [steps(load_model("Qwen3-0.6B"), composition=composition) for composition in COMPOSITIONS]


@settings(max_examples=40)
@given(workload=workloads())
def test_parts_of_every_step_add_up_to_it(workload: Workload) -> None:
    """With chunks, preemption, windows and whatever else occurs: to 1e-9 of the step, and a few units in the last place of
    the times that it lies between. A step is timed as the model times what is recorded of it.
    """
    models: list[StepTimeModel] = [*TIMED, STEPS]
    for timed in models:
        found = simulate(workload.trace, workload.config, timed).steps
        prefill_s, decode_s, host_s, _ = step_parts(found, timed)
        rounding_s = 4 * np.spacing(np.abs(found.end_s)).max(initial=0.0)
        durations_s = found.end_s - found.start_s
        np.testing.assert_allclose(prefill_s + decode_s + host_s, durations_s, rtol=1e-9, atol=rounding_s)
        assert (np.minimum(prefill_s, decode_s) >= 0).all()
        assert (host_s >= -rounding_s).all()
        assert ((prefill_s > 0) <= (found.num_chunks > 0)).all()


def test_the_host_has_what_the_model_says_it_has() -> None:
    """What is left of each step beside its kernels is what the model gives the host, though it is told of the records."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", engine=EngineConfig(enforce_eager=True), intervals=False)
    found, timed = result.records.steps, result.deployment.step_time
    parts = step_parts(found, timed)
    only_decodes = np.flatnonzero(found.num_chunk_tokens == 0)[::50]
    for row in only_decodes.tolist():
        num_decodes = int(found.num_decodes[row])
        shape = StepShape(num_decodes, int(found.decode_context_tokens[row]), (), num_decodes)
        assert parts.host_s[row] == pytest.approx(timed.parts(shape).host_s, abs=1e-9)  # type: ignore[attr-defined]


class Untold:
    """Step times of a second that say nothing of their parts."""

    def step_s(self, shape: StepShape) -> float:
        return STEPS.step_s(shape)

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return STEPS.decode_curve(num_decodes)


def test_a_model_that_does_not_tell_leaves_the_columns_empty() -> None:
    """Step times of one's own need no parts."""
    result = sim.simulate("Qwen3-0.6B", "h100-sxm", "chat", limit=3, step_time_model=Untold(), intervals=False)
    columns = result.steps[["prefill_s", "decode_s", "host_s", "bound"]]
    assert len(columns)
    assert columns.isna().all(axis=None)


def test_steps_of_a_result_have_their_parts() -> None:
    """Prompts first, then decodes; a prompt of a few tokens reads all weights as a decode does."""
    frame = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=1, intervals=False).steps
    assert (frame["prefill_s"] > 0).tolist() == [True] + [False] * (len(frame) - 1)
    assert set(frame["bound"]) <= {"compute", "memory"}
    total_s = frame["prefill_s"] + frame["decode_s"] + frame["host_s"]
    assert total_s.tolist() == pytest.approx((frame["end_s"] - frame["start_s"]).tolist(), rel=1e-9)
