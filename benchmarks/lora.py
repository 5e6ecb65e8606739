"""LoRA against the two throughputs that were measured with it and whose load and deployment are known: `python -m benchmarks.lora`.

vLLM pull requests 11267 and 11613: Llama-2-7B on an A100, 1,000 ShareGPT requests at once (246 prompt and 235 output tokens on
average, from the tokens a second that they print; here all alike), without and with an adapter of rank 8. Pull request 27402:
Qwen3-30B-A3B on an H20, 100 requests of 2,048 and 1,024 tokens at once, one adapter, rank 64.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import sim
from sim.specs.engine import EngineConfig
from sim.workload.generate import generate
from sim.workload.lengths import Fixed
from sim.workload.spec import WorkloadSpec

H20 = Path(__file__).with_name("h20.yaml")
BASE, RANK_8, RANK_64 = (
    EngineConfig(max_num_seqs=256),
    EngineConfig(max_num_seqs=256, enable_lora=True, max_loras=4, max_lora_rank=8),
    EngineConfig(max_num_seqs=128, enable_prefix_caching=False, enable_lora=True, max_lora_rank=64),
)


class Case(NamedTuple):
    """What was measured: output tokens a second, over all requests."""

    name: str
    model: str
    gpu: str | Path
    load: WorkloadSpec
    engine: EngineConfig
    vllm_version: str
    measured_tok_s: float


SHARE_GPT = WorkloadSpec(1000, float("inf"), prompt_tokens=Fixed(246), output_tokens=Fixed(235))
RANDOM = WorkloadSpec(100, float("inf"), prompt_tokens=Fixed(2048), output_tokens=Fixed(1024))
CASES = (
    Case("Llama-2-7B, A100, base", "Llama-2-7B", "a100-sxm-80gb", SHARE_GPT, BASE, "0.8.0", 2693.62),
    Case("Llama-2-7B, A100, rank 8", "Llama-2-7B", "a100-sxm-80gb", SHARE_GPT, RANK_8, "0.8.0", 2577.68),
    Case("Qwen3-30B-A3B, H20, rank 64", "Qwen3-30B-A3B", H20, RANDOM, RANK_64, "0.11.0", 1382.92),
)


def report() -> Iterator[str]:
    """A line a case."""
    yield f"{'':30}{'measured':>10}{'simulated':>11}{'error':>9}"
    for case in CASES:
        load = replace(case.load, lora_modules=("adapter",)) if case.engine.enable_lora else case.load
        found = sim.simulate(
            case.model, case.gpu, generate(load), engine=case.engine, vllm_version=case.vllm_version, intervals=False
        )
        simulated = found.summary["output_throughput"]
        error = simulated / case.measured_tok_s - 1
        yield f"{case.name:30}{case.measured_tok_s:>10,.0f}{simulated:>11,.0f}{error:>+9.1%}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for line in report():
        print(line)


if __name__ == "__main__":
    main()
