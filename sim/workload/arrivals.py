"""When requests arrive: the arrival process of `vllm bench serve`."""

import math

import numpy as np

from sim.errors import ConfigError
from sim.workload.columns import MAX_SECONDS, Floats

Random = np.random.Generator | np.random.RandomState  # the latter is what the bench itself draws from
MIN_BURSTINESS = 1e-3  # gamma gaps of a smaller shape underflow to zero


def arrival_times(num_requests: int, rate_rps: float, burstiness: float, rng: Random) -> Floats:
    """Send times in seconds, as `vllm bench serve --request-rate --burstiness` makes them.

    Gaps are Gamma(shape=burstiness, scale=1/(rate x burstiness)), so burstiness 1 is Poisson and less is burstier; the
    first request comes after the first gap, and all times are rescaled so that the last is num_requests/rate. At an
    infinite rate all come at 0.
    """
    if math.isinf(rate_rps):
        return np.zeros(num_requests)
    gaps = rng.gamma(shape=burstiness, scale=1 / (rate_rps * burstiness), size=num_requests)
    times = np.cumsum(gaps)
    return times * (num_requests / rate_rps / times[-1]) if times[-1] > 0 else times


def check_arrivals(num_requests: int, rate_rps: float, burstiness: float) -> None:
    """Raises ConfigError for a rate or a burstiness out of range."""
    if not rate_rps > num_requests / MAX_SECONDS:
        raise ConfigError(
            f"`rate_rps` must be above 0 and end within {MAX_SECONDS:.0e} s, got {rate_rps}; `inf` sends all at once."
        )
    if not MIN_BURSTINESS <= burstiness < math.inf:
        raise ConfigError(f"`burstiness` must be finite and at least {MIN_BURSTINESS}, got {burstiness}; 1 is Poisson.")
