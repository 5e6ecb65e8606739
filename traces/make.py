"""Makes the traces of this folder again, byte for byte: `python traces/make.py [FOLDER]`."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim.workload.arrivals import Gamma
from sim.workload.generate import WorkloadSpec, generate
from sim.workload.lengths import Lognormal
from sim.workload.writers import write_trace

HERE = Path(__file__).resolve().parent

TRACES = {
    "chat.csv": WorkloadSpec(
        num_requests=1000,
        rate_rps=5.0,
        arrivals=Gamma(burstiness=0.5),
        prompt_tokens=Lognormal(median=600, sigma=1.0, high=8192),
        output_tokens=Lognormal(median=180, sigma=0.8, high=1024),
    ),
    "code.csv": WorkloadSpec(
        num_requests=1000,
        rate_rps=2.5,
        arrivals=Gamma(burstiness=0.3),
        prompt_tokens=Lognormal(median=1600, sigma=0.9, high=7500),
        output_tokens=Lognormal(median=16, sigma=0.9, high=512),
    ),
    "multi-turn.jsonl": WorkloadSpec(
        num_requests=400,
        rate_rps=2.0,
        prompt_tokens=Lognormal(median=80, sigma=1.0, high=2000),
        output_tokens=Lognormal(median=200, sigma=0.7, high=1024),
        prefix_tokens=1024,
        num_prefixes=3,
        mean_turns=4.0,
        turn_gap_s=10.0,
        hash_block_size=64,
    ),
    "batch.jsonl": WorkloadSpec(
        num_requests=300,
        rate_rps=float("inf"),
        prompt_tokens=Lognormal(median=2000, sigma=0.5, high=8192),
        output_tokens=Lognormal(median=400, sigma=0.5, high=2048),
    ),
}


def make(folder: Path) -> None:
    """Writes all traces; times are rounded to microseconds, so that they do not hang on a platform's last bit."""
    for seed, (name, spec) in enumerate(TRACES.items()):
        trace = generate(spec, seed)
        write_trace(replace(trace, arrival_s=np.round(trace.arrival_s, 6)), folder / name)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
