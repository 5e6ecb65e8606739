"""Named workloads, as the autotuning design describes them."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sim.errors import ConfigError, nearest
from sim.workload.generate import WorkloadSpec
from sim.workload.lengths import Choice

OUTPUT_SHARE = 4  # the design gives lengths of whole sequences; here a quarter of each is output

TargetMetric = Literal["throughput", "latency"]
Distribution = Mapping[int, float]
"""Frequencies of batch sizes, or of lengths in tokens."""


class NamedWorkload(NamedTuple):
    """`sequence_tokens` are of prompt and output together; the latency budget is on the P99."""

    rate_rps: float
    batch_sizes: Distribution
    sequence_tokens: Distribution
    target_metric: TargetMetric
    latency_budget_ms: float

    def spec(self) -> WorkloadSpec:
        """As `sequences_spec` has it."""
        return sequences_spec(self.rate_rps, self.sequence_tokens)


def sequences_spec(rate_rps: float, sequence_tokens: Distribution) -> WorkloadSpec:
    """1,000 requests, Poisson arrivals; prompt and output are drawn apart, so that sequences have that mean and maximum."""
    outputs = tuple((max(1, tokens // OUTPUT_SHARE), weight) for tokens, weight in sequence_tokens.items())
    prompts = tuple((max(1, tokens - tokens // OUTPUT_SHARE), weight) for tokens, weight in sequence_tokens.items())
    return WorkloadSpec(rate_rps=rate_rps, prompt_tokens=Choice(prompts), output_tokens=Choice(outputs))


PROFILES = {
    "chatbot": NamedWorkload(100, {1: 0.4, 2: 0.3, 4: 0.2, 8: 0.1}, {512: 0.3, 1024: 0.4, 2048: 0.3}, "latency", 100),
    "batch_inference": NamedWorkload(
        10, {16: 0.2, 32: 0.4, 64: 0.3, 128: 0.1}, {1024: 0.5, 2048: 0.4, 4096: 0.1}, "throughput", 1000
    ),
    "interactive": NamedWorkload(50, {1: 0.8, 2: 0.15, 4: 0.05}, {256: 0.4, 512: 0.4, 1024: 0.2}, "latency", 50),
}


def named_workload(name: str) -> NamedWorkload:
    """Raises ConfigError for an unknown name."""
    if name not in PROFILES:
        raise ConfigError(
            f"the workload profile {name!r} is unknown; there are {', '.join(PROFILES)}.{nearest(name, PROFILES)}"
        )
    return PROFILES[name]
