"""The one measured run of pipeline stages that names its deployment, replayed: `python -m benchmarks.pipelines`.

Qwen3-30B-A3B on two A100s in two stages, a fork of vLLM of August 2025 (dphnAI/sonar pull request 1447, before its change of
the scheduler): 2,048 requests at once, of 1,046,373 prompt tokens and 1,044,480 output tokens in all.
"""

import numpy as np

import sim
from sim.units import MS
from sim.workload.trace import Trace

NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 2048, 1_046_373, 1_044_480
MEASURED = {"duration": 268.78, "output_throughput": 3886.0, "mean_ttft_ms": 118.97 / MS, "mean_tpot_ms": 64.21}
ENGINE = sim.EngineConfig(pipeline_parallel_size=2, max_model_len=8192)


def main() -> None:
    """Print each figure, measured and simulated."""
    load = Trace(
        request_id=tuple(f"r{number}" for number in range(NUM_REQUESTS)),
        arrival_s=np.zeros(NUM_REQUESTS),
        prompt_tokens=np.full(NUM_REQUESTS, round(PROMPT_TOKENS / NUM_REQUESTS)),
        output_tokens=np.full(NUM_REQUESTS, OUTPUT_TOKENS // NUM_REQUESTS),
        source="sonar",
    )
    found = sim.simulate("Qwen3-30B-A3B", "a100-sxm-80gb", load, engine=ENGINE, vllm_version="0.10.1", intervals=False)
    for name, measured in MEASURED.items():
        print(f"{name:20}{measured:>12,.1f}{found.summary[name]:>12,.1f}{found.summary[name] / measured - 1:>+8.1%}")
    print("stage bubbles", [round(share, 3) for share in found.summary["stage_bubble_shares"]])


if __name__ == "__main__":
    main()
