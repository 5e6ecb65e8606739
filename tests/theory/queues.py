"""An engine with one seat and steps of one second is a single-server queue; its service time is its output length."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Records
from sim.workload.trace import Trace
from tests.engines import Engine
from tests.makers import ONE_SECOND, make_config

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Queue:
    """Poisson arrivals and what one seat made of them."""

    trace: Trace
    records: Records

    @property
    def wait_s(self) -> Floats:
        return self.records.requests.first_scheduled_s - self.records.requests.arrival_s


def serve(
    engine: Engine, rate_per_s: float, service_s: Ints, *, priority: Ints | None = None, max_num_seqs: int = 1
) -> Queue:
    """Requests of one block each, arriving at random, the same at each call."""
    count = len(service_s)
    trace = Trace(
        request_id=tuple(f"{row:06}" for row in range(count)),
        arrival_s=np.random.default_rng(7).exponential(1 / rate_per_s, count).cumsum(),
        prompt_tokens=np.ones(count, dtype=np.int64),
        output_tokens=service_s,
        priority=priority,
    )
    config = make_config(
        max_num_seqs=max_num_seqs,
        max_model_len=10_000,
        block_size=1000,
        scheduling_policy="fcfs" if priority is None else "priority",
    )
    return Queue(trace, engine(trace, config, ONE_SECOND))


def assert_mean(samples: Floats, expected: float, *, num_errors: float = 4.0) -> None:
    """The mean agrees within four standard errors, which successive batches tell; and those are small enough to tell."""
    error = standard_error(samples)
    assert error < 0.05 * expected, f"standard error {error:.3g} of a mean of {expected:.3g}: too few samples"
    assert abs(samples.mean() - expected) < num_errors * error, (
        f"{samples.mean():.4g} +- {error:.2g}, not {expected:.4g}"
    )


def assert_positive(samples: Floats, *, num_errors: float = 4.0) -> None:
    """The mean is over 0 by more than four standard errors."""
    error = standard_error(samples)
    assert samples.mean() > num_errors * error, f"{samples.mean():.4g} +- {error:.2g} is not surely over 0"


def standard_error(samples: Floats, *, num_batches: int = 20) -> float:
    """Of the mean of successive samples that depend on each other, by the means of batches."""
    batches = np.array([batch.mean() for batch in np.array_split(samples, num_batches)])
    return float(batches.std(ddof=1) / np.sqrt(num_batches))
