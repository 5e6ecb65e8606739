"""How popular experts are is what runs tell."""

from benchmarks.fit_routing import TENTHS, rows, served
from sim.steptime.expert_routing import EXPONENTS
from tests.shared import SHARED, needs_shared


@needs_shared
def test_text_chooses_experts_as_served_runs_tell() -> None:
    """Whichever model is left out, within a tenth."""
    before = dict(EXPONENTS)
    (_, times, told, *_), *left_out = rows(served(SHARED / "measured"))
    assert (times, told) == (20, EXPONENTS["skewed"])
    assert all(
        abs(TENTHS.index(float(str(other))) - TENTHS.index(EXPONENTS["skewed"])) <= 1 for _, _, other, *_ in left_out
    )
    assert before == EXPONENTS
