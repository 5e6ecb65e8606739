"""What the replay of the autoscaling episode says of a run."""

import pytest

from benchmarks.fleet_episode import FLEET, MEASURED, Figures, replayed, row
from tests.shared import SHARED, needs_shared


def test_a_run_is_held_against_both_figures() -> None:
    measured = Figures(0.958, 5.93)
    assert row("loop", 1, measured, Figures(0.93, 6.5)).endswith(
        "| 95.8% | 93.0% | 5.93 | 6.50 | within 3 points and 10% |"
    )
    for found in (Figures(0.92, 5.93), Figures(0.958, 6.6)):
        assert row("loop", 1, measured, found).endswith("not within 3 points and 10% |")


@needs_shared
def test_the_episode_is_met() -> None:
    """Within 3 points of the share of requests within their limits, and 10 % of the mean number of replicas."""
    found, measured = replayed(SHARED / "fleet", FLEET, 0), MEASURED["the loop"]
    assert found.attainment == pytest.approx(measured.attainment, abs=0.03)
    assert found.mean_replicas == pytest.approx(measured.mean_replicas, rel=0.1)
