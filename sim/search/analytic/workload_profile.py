"""A workload as the autotuning design sees it: batch sizes, sequence lengths, target metric."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from sim.errors import ConfigError
from sim.specs.autotuning import AutotuningParameters
from sim.workload.autotuning import Distribution, TargetMetric
from sim.workload.generate import generate
from sim.workload.lengths import Choice
from sim.workload.named import named_workload
from sim.workload.spec import WorkloadSpec
from sim.workload.trace import Trace

OUTPUT_SHARE = 4  # the design gives lengths of whole sequences; here a quarter of each is output


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """The profile of a workload. The distributions map a batch size, or a sequence length in tokens, to its frequency (0 to 1).

    `latency_budget_ms` is on the P99. Raises ConfigError for an unknown target metric.
    """

    requests_per_second: float
    batch_size_distribution: Distribution
    sequence_length_distribution: Distribution
    target_metric: TargetMetric
    latency_budget_ms: float

    def __post_init__(self) -> None:
        if self.target_metric not in {"throughput", "latency"}:
            raise ConfigError(f"target_metric must be throughput or latency, got {self.target_metric!r}.")

    @classmethod
    def from_trace_analysis(
        cls,
        request_trace: Trace | Sequence[Mapping[str, Any]],
        *,
        target_metric: TargetMetric = "throughput",
        latency_budget_ms: float = 1000,
        parameters: AutotuningParameters | None = None,
    ) -> Self:
        """From a trace, or rows with arrival_s, prompt_tokens and output_tokens.

        A request is taken to run from its arrival for `assumed_tpot_s` a token; how many run at each arrival gives the
        batch sizes.
        """
        columns = _columns(request_trace)
        arrival_s, lengths = columns[0], (columns[1] + columns[2]).astype(np.int64)
        held_s = columns[2] * (parameters or AutotuningParameters()).assumed_tpot_s
        finished = np.searchsorted(np.sort(arrival_s + held_s), arrival_s, side="right")
        running = np.maximum(1, np.arange(1, len(arrival_s) + 1) - finished)
        span_s = float(arrival_s[-1] - arrival_s[0])
        rate = (len(arrival_s) - 1) / span_s if span_s else float(len(arrival_s))
        return cls(rate, _frequencies(running), _frequencies(lengths), target_metric, latency_budget_ms)

    @classmethod
    def create_synthetic(
        cls, workload_type: str, requests_per_second: float | None = None, latency_budget_ms: float | None = None
    ) -> Self:
        """`chatbot`, `batch_inference` or `interactive`, as the design has them; of another named workload what its trace
        says. Raises ConfigError for any other.
        """
        found = named_workload(workload_type)
        said = found.autotuning
        if said is None:
            profile = cls.from_trace_analysis(generate(found.workload))
        else:
            profile = cls(
                said.requests_per_second,
                said.batch_sizes,
                said.sequence_tokens,
                said.target_metric,
                said.latency_budget_ms,
            )
        rate, budget_ms = (
            requests_per_second or profile.requests_per_second,
            latency_budget_ms or profile.latency_budget_ms,
        )
        return replace(profile, requests_per_second=rate, latency_budget_ms=budget_ms)

    def spec(self) -> WorkloadSpec:
        """1,000 requests, Poisson arrivals; prompt and output are drawn apart, so that sequences have that mean and maximum.
        It says nothing of batches.
        """
        lengths = self.sequence_length_distribution.items()
        outputs = tuple((max(1, tokens // OUTPUT_SHARE), weight) for tokens, weight in lengths)
        prompts = tuple((max(1, tokens - tokens // OUTPUT_SHARE), weight) for tokens, weight in lengths)
        return WorkloadSpec(
            request_rate=self.requests_per_second, prompt_tokens=Choice(prompts), output_tokens=Choice(outputs)
        )

    def trace(self, seed: int = 0) -> Trace:
        """The requests of `spec`."""
        return generate(self.spec(), seed)

    def get_expected_max_batch_size(self, percentile: float = 0.95) -> int:
        """The batch size that is not exceeded with that frequency."""
        return _at_percentile(self.batch_size_distribution, percentile)

    def get_expected_max_sequence_length(self, percentile: float = 0.95) -> int:
        """The length in tokens that is not exceeded with that frequency."""
        return _at_percentile(self.sequence_length_distribution, percentile)


def _columns(trace: Trace | Sequence[Mapping[str, Any]]) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    if isinstance(trace, Trace):
        return [np.asarray(getattr(trace, name), dtype=np.float64) for name in names]
    try:
        rows = np.array([[float(row[name]) for name in names] for row in trace])
    except KeyError as error:
        raise ConfigError(f"each row of a request trace needs {', '.join(names)}; {error} is missing.") from None
    if not len(rows):
        raise ConfigError("a request trace must have at least one row, got none.")
    return list(rows[np.argsort(rows[:, 0], kind="stable")].T)


def _frequencies(values: np.ndarray[Any, np.dtype[np.int64]]) -> dict[int, float]:
    counts = Counter(values.tolist())
    return {value: count / len(values) for value, count in sorted(counts.items())}


def _at_percentile(distribution: Distribution, percentile: float) -> int:
    cumulative = 0.0
    for value, frequency in sorted(distribution.items()):
        cumulative += frequency
        if cumulative >= percentile - 1e-9:  # frequencies add up to 1 but for rounding
            return value
    return max(distribution)
