"""What servers have of the rate at which a GPU multiplies matrices alone: `python -m benchmarks.fit_clocks ../shared/measured`.

Tables time a kernel for some milliseconds; a server multiplies for minutes, and its GPU lowers its clock where that takes more power than the board has.
B200 and B300 are one chip with one table, at 1,000 and 1,100 W. Where InferenceX measured both with the same model, vLLM, layout and load, B300's first tokens of
prompts of 8,000 came earlier by what no kernel, link or launch explains, and tokens of decodes, which read memory, did not. B200's share is fitted to the ratio of these
pairs; B300's figures themselves, and all runs of other GPUs, are not used. Writes `clock_fits.json`, which write_profiles.py puts into B200's profile.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.fit_launches import log_errors, soft_l1
from sim.engine.records import Floats
from sim.measure.published import completed, scripted, server_of
from sim.measure.runs import ClosedLoop, Run, read_runs
from sim.specs.hardware import HardwareProfile, load_gpu

OUTPUT = Path(__file__).with_name("clock_fits.json")
SLOWED, BESIDE = "b200-sxm", "b300-sxm"
LONG_PROMPT_TOKENS = 4000  # whose first tokens are matrices and attention, and hardly launches
MULTIPLYING = ("gemm", "experts", "experts_weight_only", "prefill_attention", "prefill_attention_fp8")


class Pair(NamedTuple):
    """The same load on the same server, but for the GPU."""

    slowed: Run
    beside: Run


def main(folder: Path) -> None:
    pairs = _pairs([run for run in read_runs(folder / "closed_loop.json") if scripted(run)])
    beside = _first_tokens([pair.beside for pair in pairs], load_gpu(BESIDE))

    def errors(share: float) -> Floats:
        gpu = slowed(load_gpu(SLOWED), load_gpu(BESIDE), share)
        return _first_tokens([pair.slowed for pair in pairs], gpu) - beside

    found = minimize_scalar(lambda share: soft_l1(errors(share)), bounds=(0.6, 1.1), method="bounded")
    share = round(float(found.x), 3)
    before, after = (100 * float(np.median(np.abs(np.expm1(errors(one))))) for one in (1.0, share))
    print(
        f"{len(pairs)} pairs: {share}; their ratios are off by {before:.1f} % with 1, {after:.1f} % with it, in the median"
    )
    source = f"fitted by fit_clocks.py to {len(pairs)} pairs of closed loops on {SLOWED} and {BESIDE}, prompts of 8,000"
    fitted = {
        "share": share,
        "source": source,
        "num_pairs": len(pairs),
        "before": round(before, 1),
        "after": round(after, 1),
    }
    OUTPUT.write_text(json.dumps({SLOWED: fitted}, indent=2) + "\n", encoding="utf-8")


def slowed(gpu: HardwareProfile, alone: HardwareProfile, share: float) -> HardwareProfile:
    """The GPU with that share of the rates that the other one of its chip has by its tables."""
    changed = {name: _slower(getattr(alone.operators, name), share) for name in MULTIPLYING}
    return replace(gpu, operators=replace(gpu.operators, **changed))


def _slower(fit: Any, share: float) -> Any:
    if isinstance(fit, Mapping):
        return {dtype: _slower(one, share) for dtype, one in fit.items()}
    return replace(fit, compute_efficiency=share * fit.compute_efficiency)


def _pairs(runs: Sequence[Run]) -> list[Pair]:
    long = [run for run in completed(runs) if _load(run)]
    beside = {_load(run): run for run in long if run.gpu == BESIDE}
    return [Pair(run, beside[_load(run)]) for run in long if run.gpu == SLOWED and _load(run) in beside]


def _load(run: Run) -> tuple[object, ...]:
    """What two runs have alike beside the GPU; nothing where prompts are short."""
    work = run.workload
    if not isinstance(work, ClosedLoop) or work.prompt_tokens.uniform[1] < LONG_PROMPT_TOKENS:
        return ()
    server = server_of(run)._replace(gpu="")
    layout = tuple(
        run.engine.get(name) for name in ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel")
    )
    return (
        *server,
        run.engine_version,
        *layout,
        work.prompt_tokens.uniform,
        work.output_tokens.uniform,
        work.concurrency,
    )


def _first_tokens(runs: Sequence[Run], gpu: HardwareProfile) -> Floats:
    """Of each run, the log error of the mean time to the first token."""
    return np.array([log_errors(run, gpu)[0] for run in runs])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
