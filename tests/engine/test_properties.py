"""Laws of every run, on workloads drawn at random."""

from hypothesis import given

from tests.engine.laws import LAWS
from tests.engines import Engine
from tests.makers import replay
from tests.properties import engine_examples as examples
from tests.workloads import SINCE_0_12, Workload, workloads


@examples(100)
@given(workload=workloads(versions=SINCE_0_12))
def test_all_laws_hold_of_any_run(engine: Engine, workload: Workload) -> None:
    """Requests, tokens, blocks and time are conserved; order, victims and limits are the policy's."""
    done = replay(engine, *workload)
    for law in LAWS:
        law(workload, done)
