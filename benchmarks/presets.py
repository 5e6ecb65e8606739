"""What each preset promises, and how far it keeps that: `python -m benchmarks.presets`.

On the bundled trace of its use, by model and GPU, beside vLLM's own choice, at rates that this serves without a queue; batches come at once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sim
from sim.report.tables import aligned


class Promise(NamedTuple):
    """A figure that the preset improves on a trace, and one that may get worse for it."""

    preset: str
    trace: str
    figure: str
    cost: str


class Deployed(NamedTuple):
    """A model on a GPU, and how many times the rate of `chat` and of `interactive` it is to serve."""

    model: str
    gpu: str
    chat: float
    interactive: float
    engine: Mapping[str, Any] = {}

    def change(self, promise: Promise, limit: int | None = None) -> dict[str, float]:
        """By figure, what the preset has over what vLLM's own choice has, less 1."""
        scale = {"chat": self.chat, "interactive": self.interactive}.get(promise.trace, 1.0)
        plain, preset = (
            sim.simulate(
                self.model, self.gpu, promise.trace, engine=engine, rate_scale=scale, limit=limit, intervals=False
            ).summary
            for engine in (sim.EngineConfig(**self.engine), sim.preset(promise.preset, **self.engine))
        )
        return {name: preset[name] / plain[name] - 1 for name in (promise.figure, promise.cost)}


PROMISES = (
    Promise("chat", "chat", "p99_itl_ms", "p99_ttft_ms"),
    Promise("batch", "batch", "output_throughput", "p99_itl_ms"),
    Promise("interactive", "interactive", "mean_ttft_ms", "mean_tpot_ms"),
)
DEPLOYED = (
    Deployed("Llama-3.1-8B", "h100-sxm", 2, 1),
    Deployed("Llama-3.1-8B", "a100-sxm-80gb", 0.8, 0.16),
    Deployed("Llama-3.1-8B", "l4", 0.08, 0.03, {"max_model_len": 8192}),
    Deployed("Llama-3.1-70B", "h100-sxm", 0.8, 0.16, {"tensor_parallel_size": 4}),
    Deployed("gpt-oss-120b", "h100-sxm", 1.2, 0.24),
)


def main() -> None:
    rows = []
    for promise in PROMISES:
        for deployed in DEPLOYED:
            changes = [f"{name} {change:+.0%}" for name, change in deployed.change(promise).items()]
            rows.append((promise.preset, promise.trace, deployed.model, deployed.gpu, *changes))
    print(aligned(("preset", "trace", "model", "gpu", "promised", "for"), rows))


if __name__ == "__main__":
    main()
