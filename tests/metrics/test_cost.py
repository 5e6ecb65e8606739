"""What a run costs."""

import pytest

from sim.metrics.cost import cost


def test_gpu_hours_times_price() -> None:
    """Four GPUs for half an hour at 3 USD: 6 USD, and 1000 tokens/s of them come to 3.33 USD a million."""
    found = cost({"output_throughput": 1000.0}, held_s=1800.0, num_gpus=4, usd_per_hour=3.0)
    assert found == {"gpu_hours": 2.0, "cost_usd": 6.0, "usd_per_million_output_tokens": pytest.approx(10 / 3)}


def test_without_a_price_there_are_hours_alone() -> None:
    """And without a completed request no cost of its tokens."""
    assert cost({"output_throughput": 1.0}, held_s=1800.0, num_gpus=1, usd_per_hour=None) == {
        "gpu_hours": 0.5,
        "cost_usd": None,
        "usd_per_million_output_tokens": None,
    }
    nothing = cost({"output_throughput": None}, held_s=3600.0, num_gpus=1, usd_per_hour=3.0)
    assert nothing == {"gpu_hours": 1.0, "cost_usd": 3.0, "usd_per_million_output_tokens": None}
