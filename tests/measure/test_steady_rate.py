"""The rate at which a deployment is no longer at its limit: the largest, roughly, with few replays."""

from typing import Any

import numpy as np
import pytest

from sim.measure.confidence import Bands
from sim.measure.queueing import widest
from sim.measure.steady_rate import LOWEST, Found, Notches, likely_share, steady_rate
from sim.metrics.latencies import latencies
from sim.steptime.perturbed import PerturbedStepTime, all_off_by
from sim.workload.rates import scale_rate
from tests.engines import simulate
from tests.makers import make_config
from tests.search.makers import STEPS, make_trace

BANDS = Bands(step=0.06, ttft=0.1, p95=0.1, p99=0.1, blocks=0.0)
BUSY = [0.8, 1.0, 1.3, 2.0, 3.0]


class Queue:
    """A server that is `busy` for a share of 1000 s at the full rate, or more: waiting as in M/M/1, or growing to the end."""

    def __init__(self, busy: float, bands: Bands = BANDS) -> None:
        self.busy, self.bands = busy, bands
        self.num_replays = 0

    def replay(self, factor: float, share: float) -> dict[str, Any]:
        self.num_replays += 1
        load = self.busy * factor * share
        wait_ms = 10 * factor * load / (1 - load) if load < 0.99 else factor * 1e3 + 1e6 * max(0.0, load - 0.99) / share
        step_ms = 10 * factor
        return {"p99_ttft_ms": step_ms + wait_ms, "p99_itl_ms": step_ms, "duration": 1000 / share * max(1.0, load)}

    def steady_rate(self, first_share: float | None = None) -> Found:
        low, point = self.replay(np.exp(-self.bands.step), 1.0), self.replay(1.0, 1.0)
        notches = Notches(self.bands, point, low, lambda share: self.replay(1.0, share))
        self.num_replays = 0
        return steady_rate(notches, first_share or likely_share(point))

    def queues(self, share: float) -> bool:
        low, high = (self.replay(np.exp(side * self.bands.step), share) for side in (-1, 1))
        found = widest(low, low, high, self.bands)
        return found is not None and found.queues


@pytest.mark.parametrize("busy", BUSY)
def test_it_is_steady_at_the_share_found_and_not_two_notches_above(busy: float) -> None:
    """By replays at both ends of the band at that very share."""
    queue = Queue(busy)
    found = queue.steady_rate()
    assert found.is_steady
    assert not queue.queues(found.share)
    assert queue.queues(found.share * np.exp(2 * BANDS.step))


@pytest.mark.parametrize("busy", BUSY)
def test_a_handful_of_replays_tell(busy: float) -> None:
    queue = Queue(busy)
    queue.steady_rate()
    assert queue.num_replays <= 5


def test_next_to_the_full_rate_its_own_replays_serve_again() -> None:
    queue = Queue(0.8)
    queue.steady_rate(first_share=0.94)
    assert queue.num_replays == 1


def test_wide_bands_have_the_middle_tried() -> None:
    """Notches two apart are 26 % apart."""
    queue = Queue(1.3, Bands(step=0.15, ttft=0.1, p95=0.1, p99=0.1, blocks=0.0))
    found = queue.steady_rate()
    assert not queue.queues(found.share)
    assert queue.queues(found.share * np.exp(0.15))


def test_where_no_rate_is_steady_it_says_down_to_which() -> None:
    """Bursts that no rate takes apart."""
    notches = Notches(BANDS, _burst(1.0), _burst(np.exp(-0.06)), _burst)
    found = steady_rate(notches, 0.7)
    assert not found.is_steady
    assert found.share == pytest.approx(LOWEST, rel=0.1)


def _burst(share: float) -> dict[str, Any]:
    return {"p99_ttft_ms": 1e6 * share**9}


def test_longer_steps_are_a_higher_rate_on_a_slower_clock() -> None:
    """Which is why one replay serves two rates: step times so many times as long against a rate so many times as high."""
    config, trace, factor, share = make_config(max_num_seqs=4, num_gpu_blocks=300), make_trace(200), 1.25, 0.5
    slow = latencies(simulate(scale_rate(trace, share), config, PerturbedStepTime(STEPS, all_off_by(factor))).requests)
    fast = latencies(simulate(scale_rate(trace, share * factor), config, STEPS).requests)
    assert slow.ttft.all_s().max() > 2 * slow.ttft.all_s().min(), "some wait"
    for one, other in zip(slow, fast, strict=True):
        np.testing.assert_allclose(one.all_s(), other.all_s() * factor, rtol=1e-9)
