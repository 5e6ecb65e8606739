"""Figures of a log beside those of the plan."""

import pytest

from sim.report.startup_log import LogLine, log_table


@pytest.mark.parametrize(
    ("logged", "predicted", "error"), [(10.0, 11.0, 10.0), (10.0, 9.0, -10.0), (10.0, None, None), (-0.19, 0.2, None)]
)
def test_errors_are_signed_per_cent(logged: float, predicted: float | None, error: float | None) -> None:
    """None where there is no prediction, or the log has less than nothing."""
    found = LogLine("weights", logged, predicted).error_percent
    assert found == (None if error is None else pytest.approx(error))


def test_counts_and_memory_are_written_apart() -> None:
    """GiB with two decimals, tokens in full, concurrency as vLLM writes it, and no negative zero."""
    table = log_table(
        (
            LogLine("weights", 14.99, 14.989),
            LogLine("KV cache tokens", 476016, 480000),
            LogLine("maximum concurrency", 2, 3),
        )
    )
    assert table.splitlines()[1:] == [
        "weights              14.99 GiB  14.99 GiB  +0.0 %",
        "KV cache tokens        476,016    480,000  +0.8 %",
        "maximum concurrency      2.00x      3.00x  +50.0 %",
    ]
