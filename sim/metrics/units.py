"""The units of a summary's figures, told by their names, and others that they may be given in."""

from collections.abc import Mapping

Scales = Mapping[str, float]
"""Units by what one of them is in the figure's own, which comes first."""

MILLISECONDS: Scales = {"ms": 1.0, "s": 1000.0, "us": 0.001}
SECONDS: Scales = {"s": 1.0, "ms": 0.001, "min": 60.0}
SHARE: Scales = {"%": 0.01}
TOKENS_PER_S: Scales = {"tok/s": 1.0}
REQUESTS_PER_S: Scales = {"req/s": 1.0}
DOLLARS: Scales = {"USD": 1.0}
COUNT: Scales = {}
SHARES = ("_share", "_fraction", "_utilization", "_attainment", "_hit_rate", "_usage")
OF_SHARES = ("limits.busy.", "limits.queued.", "limits.steps.")


def scales_of(metric: str) -> Scales:
    """The units of a figure; none of a count."""
    name = metric.rpartition(".")[2]
    if name.endswith("_ms"):
        return MILLISECONDS
    if name in {"output_throughput", "total_token_throughput"}:
        return TOKENS_PER_S
    if name in {"request_throughput", "request_goodput", "offered_rate", "served_rate"}:
        return REQUESTS_PER_S
    if name.endswith(SHARES) or metric.startswith(OF_SHARES):
        return SHARE
    if "usd" in name:
        return DOLLARS
    return SECONDS if name.endswith("_s") or name == "duration" else COUNT


def unit_of(metric: str) -> str:
    """The unit that its number is in; empty for counts and shares."""
    return next((unit for unit, scale in scales_of(metric).items() if scale == 1.0), "")
