"""A queue that grows to the end is told from one that does not."""

import numpy as np
import pytest

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.metrics.overload import Overload, overload
from sim.steptime.linear import LinearStepTime
from tests.makers import Ask, make_config, make_trace

TEN_A_SECOND = LinearStepTime(0.1, 0.0, 0.0)  # one request at a time, each of one step


def found(gaps_s: list[float]) -> Overload | None:
    asks = [Ask(f"r{row}", 20, 1, float(at_s)) for row, at_s in enumerate(np.cumsum(gaps_s))]
    return overload(
        simulate(make_trace(asks), FleetPlan.alike(make_config(max_num_seqs=1), TEN_A_SECOND)).merged.requests
    )


def test_twice_the_rate_that_can_be_served() -> None:
    """201 requests in 10 s, of which 100 are served and one more is running."""
    over = found([0.0] + [0.05] * 200)
    assert over is not None
    assert over.offered_rate == pytest.approx(20.0)
    assert over.served_rate == pytest.approx(10.0, abs=0.11)
    assert over.num_not_begun == pytest.approx(100, abs=1)
    assert over.text.startswith("The deployment cannot keep up: 20 requests/s came and 1")


@pytest.mark.parametrize(
    "gaps_s",
    [
        pytest.param([0.2] * 100, id="half the rate"),
        pytest.param([0.01] * 100 + [0.2] * 100, id="a burst that is worked off"),
        pytest.param([0.0] * 100, id="all at once"),
        pytest.param([0.05] * 20, id="a handful"),
    ],
)
def test_no_overload(gaps_s: list[float]) -> None:
    assert found(gaps_s) is None
