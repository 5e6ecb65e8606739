"""Makes the traces of this folder again from the workloads beside them, byte for byte: `python traces/make.py [FOLDER]`."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim.workload.generate import generate
from sim.workload.named import named_workload
from sim.workload.writers import write_trace

HERE = Path(__file__).resolve().parent

TRACES = {
    "chat.csv": ("chat", 0),
    "code.csv": ("code-completion", 1),
    "multi-turn.jsonl": ("multi-turn", 2),
    "batch.jsonl": ("batch", 3),
}
"""Each with its workload and seed."""


def make(folder: Path) -> None:
    """Writes all traces; times are rounded to microseconds, so that they do not hang on a platform's last bit."""
    for file, (name, seed) in TRACES.items():
        trace = generate(named_workload(name).workload, seed)
        write_trace(replace(trace, arrival_s=np.round(trace.arrival_s, 6)), folder / file)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
