"""How fast Triton multiplies experts of MXFP4 on Hopper, which no table times: `python -m benchmarks.mxfp4 ../shared/fleet`.

llm-d's guide p2p-kv-cache-sharing computes prompts of five lengths on gpt-oss-120b, an H200 each (benchmarks/pulls.py has their source). What the longer ones take
beyond the shortest is free of the client and the gateway. Prints which share of the rate of 16-bit experts these four would have, where 1 is simulated, and
what llm-d's calibration of one chunk on an H100 took. Nothing is fitted to either.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path

import pandas as pd
from scipy.optimize import minimize_scalar

import sim
from benchmarks.pulls import ENGINE, QUESTION_TOKENS, measured_times
from sim.specs.hardware import HardwareProfile, load_gpu

CHUNK = 8192
H100_TOKENS_PER_S = 39065  # llm-d/llm-d @127478cf, guides/recipes/router/calibration: CHUNK over median TTFT


def fit(folder: Path) -> float:
    """The share that makes the four differences likeliest."""
    measured = {length + QUESTION_TOKENS: found.recompute for length, found in measured_times(folder).items()}

    def unlikely(share: float) -> float:
        simulated = prompt_ms(with_share("h200-sxm", share), list(measured))
        pairs = zip(_beyond_the_first(simulated), _beyond_the_first(list(measured.values())), strict=True)
        return sum(log(mine / theirs) ** 2 for mine, theirs in pairs)

    return float(minimize_scalar(unlikely, bounds=(0.3, 1.2), method="bounded", options={"xatol": 1e-3}).x)


def with_share(name: str, share: float) -> HardwareProfile:
    """A GPU whose MXFP4 experts are multiplied at that share of the rate of its 16-bit ones."""
    gpu = load_gpu(name)
    own = gpu.operators.experts["bf16"]
    faster = replace(own, compute_efficiency=own.compute_efficiency * share)
    return replace(gpu, operators=replace(gpu.operators, experts={**gpu.operators.experts, "bf16": faster}))


def prompt_ms(gpu: HardwareProfile, lengths: Sequence[int]) -> list[float]:
    """Until a prompt of each length has its first token, alone."""
    return [
        sim.simulate(
            "gpt-oss-120b", gpu, pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [length], "output_tokens": [1]}),
            engine=replace(ENGINE, max_model_len=length + 1), intervals=False,
        ).summary["mean_ttft_ms"]
        for length in lengths
    ]  # fmt: skip


def _beyond_the_first(times: Sequence[float]) -> list[float]:
    return [time - times[0] for time in times[1:]]


def main(folder: Path) -> None:
    (checked,) = prompt_ms(load_gpu("h100-sxm"), [CHUNK])
    print(
        f"{fit(folder):.2f} of the rate of 16 bits would meet the prompts on an H200 best; as fast is what is simulated."
    )
    print(
        f"One chunk of {CHUNK:,} tokens on an H100: {checked:.0f} ms in the engine; {1e3 * CHUNK / H100_TOKENS_PER_S:.0f} were measured by a client."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
