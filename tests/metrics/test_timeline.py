"""What replicas did over time adds up to what the summary says of the whole."""

from collections.abc import Callable

import numpy as np
import pytest

import sim
from sim.metrics.timeline import MOST_INTERVALS, Timeline, timeline
from tests import results


def found_of(result: sim.Result) -> Timeline:
    found = timeline(result.fleet, result.run)
    assert found is not None
    return found


@pytest.mark.parametrize("result", [results.crowded, results.fleet])
def test_tokens_preemptions_and_graphs_add_up(result: Callable[[], sim.Result]) -> None:
    """Over all intervals, of which there are few."""
    run = result()
    found = found_of(run)
    whole_s = run.run.span_s * len(run.run.replicas)
    assert MOST_INTERVALS / 2 - 1 <= len(found.starts_s) <= MOST_INTERVALS
    assert found.output_tokens_per_s.sum() * found.interval_s == pytest.approx(run.summary["total_output_tokens"])
    assert found.num_preempted.sum() == run.summary["num_preemptions"]
    assert found.num_running.highest.max() >= run.steps["num_running"].max()
    busy_s = sum(share.sum() for share in found.work.values()) * found.interval_s * len(run.run.replicas)
    assert busy_s / whole_s == pytest.approx(run.summary["gpu_busy_fraction"])
    np.testing.assert_allclose(sum(found.graphs.values()), sum(found.work.values()), atol=1e-6)


def test_waiting_is_for_what_the_summary_says() -> None:
    """And the highest KV cache usage is the highest of all."""
    run = results.crowded()
    found = found_of(run)
    for name, share in run.summary["limits"]["queued"].items():
        assert found.lacks[name].sum() * found.interval_s / run.run.span_s == pytest.approx(share, abs=1e-9)
    assert found.kv_cache_usage.highest.max() == pytest.approx(run.summary["max_kv_cache_usage"])


def test_a_run_without_steps_has_no_timeline() -> None:
    run = sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        results.crowded().trace.part(0, 1),
        engine=sim.EngineConfig(max_model_len=16),
        intervals=False,
    )
    assert timeline(run.fleet, run.run) is None
