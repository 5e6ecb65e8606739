"""What a run costs at the price of its GPUs, idle time included."""

from collections.abc import Mapping
from typing import Any

SECONDS_PER_HOUR = 3600.0
MILLION = 1e6


def cost(
    metrics: Mapping[str, Any], *, held_s: float, num_gpus: float, usd_per_hour: float | None
) -> dict[str, float | None]:
    """GPU hours of so many GPUs held so long, their cost in USD, and that of a million tokens; None where no price is known."""
    gpu_hours = num_gpus * held_s / SECONDS_PER_HOUR
    return {
        "gpu_hours": gpu_hours,
        "cost_usd": None if usd_per_hour is None else gpu_hours * usd_per_hour,
        "usd_per_million_output_tokens": usd_per_million(usd_per_hour, num_gpus, metrics["output_throughput"]),
    }


def usd_per_million(usd_per_hour: float | None, num_gpus: float, tokens_per_s: float | None) -> float | None:
    """What a million tokens cost at that rate, in USD; None without a price or tokens."""
    if usd_per_hour is None or not tokens_per_s:
        return None
    usd_per_s = usd_per_hour * num_gpus / SECONDS_PER_HOUR
    return usd_per_s / tokens_per_s * MILLION
