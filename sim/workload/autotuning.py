"""What a workload's file says for the autotuning design: batch sizes, lengths of whole sequences, and what is wanted."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from sim.workload.columns import show
from sim.workload.spec_values import Place, check_keys, read_integer, read_number

TargetMetric = Literal["throughput", "latency"]
Distribution = Mapping[int, float]
"""Frequencies of batch sizes, or of lengths in tokens."""


class Autotuning(NamedTuple):
    """`sequence_tokens` are of prompt and output together; the latency budget is on the P99."""

    requests_per_second: float
    batch_sizes: Distribution
    sequence_tokens: Distribution
    target_metric: TargetMetric
    latency_budget_ms: float


def read_autotuning(values: Any, place: Place) -> Autotuning:
    """That section of a file. Raises TraceError with the place of what is wrong."""
    if not isinstance(values, Mapping) or set(values) != set(Autotuning._fields):
        check_keys(values if isinstance(values, Mapping) else {}, Autotuning._fields, place)
        raise place.fault(f"must have {', '.join(Autotuning._fields)}, got {show(values)}.")
    metric = values["target_metric"]
    if metric not in {"throughput", "latency"}:
        raise place.under("target_metric").fault(f"must be throughput or latency, got {show(metric)}.")
    return Autotuning(
        read_number(values["requests_per_second"], place.under("requests_per_second")),
        _frequencies(values["batch_sizes"], place.under("batch_sizes")),
        _frequencies(values["sequence_tokens"], place.under("sequence_tokens")),
        metric,
        read_number(values["latency_budget_ms"], place.under("latency_budget_ms")),
    )


def _frequencies(values: Any, place: Place) -> Distribution:
    if not isinstance(values, Mapping) or not values:
        raise place.fault(f"must be a mapping of numbers to frequencies, got {show(values)}.")
    return {read_integer(key, place): read_number(share, place.under(key)) for key, share in values.items()}
