"""The `vllm bench serve` line that would check a forecast on a real server."""

import shlex
from collections.abc import Iterable

from sim.search.slo import Slo
from sim.workload.describe import describe
from sim.workload.trace import Trace

MOST_PROMPTS = 1000


def bench_command(model: str, trace: Trace, slos: Iterable[Slo] = (), *, rate_scale: float = 1.0) -> str:
    """Random prompts with the trace's mean lengths, rate and burstiness: its dataset formats carry no private trace."""
    facts = describe(trace)
    words = [
        "vllm", "bench", "serve", "--model", model, "--dataset-name", "random",
        "--random-input-len", f"{facts.prompt_tokens.mean:.0f}",
        "--random-output-len", f"{max(1, facts.output_tokens.mean):.0f}",
        "--num-prompts", str(min(len(trace), MOST_PROMPTS)), "--ignore-eos",
    ]  # fmt: skip
    if facts.mean_rate_rps is None:
        words += ["--request-rate", "inf"]
    else:
        words += ["--request-rate", f"{facts.mean_rate_rps * rate_scale:.4g}"]
        words += ["--burstiness", f"{_burstiness(facts.gap_cv):.3g}"]
    percentiles = sorted({50.0, 99.0, *(slo.percentile for slo in slos)})
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    words += ["--metric-percentiles", ",".join(f"{percentile:g}" for percentile in percentiles)]
    goodput = [f"{slo.latency}:{slo.limit_ms:g}" for slo in slos if slo.latency != "itl"]
    return shlex.join([*words, *(["--goodput", *goodput] if goodput else []), "--save-result"])


def _burstiness(gap_cv: float | None) -> float:
    """The shape of gamma-distributed gaps with that coefficient of variation."""
    return 1.0 if not gap_cv else min(1000.0, 1 / gap_cv**2)
