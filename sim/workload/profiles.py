"""Named workloads, with the rates and sequence lengths that the project's design names for them."""

from sim.errors import ConfigError, nearest
from sim.workload.generate import WorkloadSpec
from sim.workload.lengths import Choice

OUTPUT_SHARE = 4  # the design gives lengths of whole sequences; here a quarter of each is output


def _profile(rate_rps: float, sequence_tokens: dict[int, float]) -> WorkloadSpec:
    outputs = tuple((tokens // OUTPUT_SHARE, weight) for tokens, weight in sequence_tokens.items())
    prompts = tuple((tokens - tokens // OUTPUT_SHARE, weight) for tokens, weight in sequence_tokens.items())
    return WorkloadSpec(rate_rps=rate_rps, prompt_tokens=Choice(prompts), output_tokens=Choice(outputs))


PROFILES = {
    "chatbot": _profile(100, {512: 0.3, 1024: 0.4, 2048: 0.3}),
    "batch_inference": _profile(10, {1024: 0.5, 2048: 0.4, 4096: 0.1}),
    "interactive": _profile(50, {256: 0.4, 512: 0.4, 1024: 0.2}),
}


def workload_profile(name: str) -> WorkloadSpec:
    """A named workload of 1,000 requests, Poisson arrivals; prompt and output are drawn apart, so that sequences have
    the design's mean and maximum. Raises ConfigError for an unknown name.
    """
    if name not in PROFILES:
        raise ConfigError(
            f"the workload profile {name!r} is unknown; there are {', '.join(PROFILES)}.{nearest(name, PROFILES)}"
        )
    return PROFILES[name]
