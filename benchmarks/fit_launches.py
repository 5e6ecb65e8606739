"""How long the host takes to launch a kernel outside of CUDA graphs: `python -m benchmarks.fit_launches ../shared/measured`.

One number for all GPUs, fitted to the first tokens of the closed loops on H200 whose arguments are known: a dense model, whose prompts are longer than any
graph. Prints how far it is off there and on the GPUs that it was not fitted to, and writes `launch_fits.json`, which write_profiles.py puts into the profiles.
Nothing is fitted to the closed loops whose arguments are unknown (benchmarks/closed_loops.py), nearly all of them of experts.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim.engine.records import Floats
from sim.measure.replay import replay
from sim.measure.runs import Run, read_runs
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.units import US

OUTPUT = Path(__file__).with_name("launch_fits.json")
TRIED_US = np.arange(20.0, 101.0, 10.0)
FINE_US = np.arange(20.0, 100.1, 0.5)
FITTED_ON = "h200-sxm"  # whose long prompts, which launches do not bound, are within some per cent
BEFORE_US = 29.2  # Splitwise's eager Llama-2-70B on H100, in 2023
SCALE = 0.15  # log error from which on a run counts as an outlier, as for kernels


def main(folder: Path) -> None:
    runs = [run for run in read_runs(folder / "closed_loop.json") if run.engine_args_known]
    errors = np.array([[_log_error(run, launch_us) for launch_us in TRIED_US] for run in runs])
    gpus = np.array([run.gpu for run in runs])
    launch_us = _nearest(errors[gpus == FITTED_ON])
    print(f"{launch_us:.1f} us a launch, by {FITTED_ON}")
    print(f"{'GPU':12}{'runs':>6}{'MAPE % before':>15}{'after':>8}")
    mapes = {}
    for gpu in sorted(set(gpus)):
        mine = errors[gpus == gpu]
        mapes[gpu] = {"before": round(_mape(_at(mine, BEFORE_US)), 1), "after": round(_mape(_at(mine, launch_us)), 1)}
        print(f"{gpu:12}{len(mine):6}{mapes[gpu]['before']:15.1f}{mapes[gpu]['after']:8.1f}")
    num_runs = int((gpus == FITTED_ON).sum())
    fitted = {"launch_us": round(launch_us, 1), "source": _source(num_runs), "mape": mapes}
    OUTPUT.write_text(json.dumps(fitted, indent=2) + "\n", encoding="utf-8")


def _source(num_runs: int) -> str:
    return f"fitted by fit_launches.py to the first tokens of {num_runs} closed loops of Llama-3.1-70B on {FITTED_ON}"


def _log_error(run: Run, launch_us: float) -> float:
    """Of the mean time to the first token."""
    figures = replay(run, gpu=_with(load_gpu(run.gpu), launch_us)).figures[None]
    measured = next(one.figures for one in run.measured if one.stage is None)
    return float(np.log(figures["ttft_mean"] / measured["ttft_mean"]))


def _with(gpu: HardwareProfile, launch_us: float) -> HardwareProfile:
    host = replace(gpu.operators.host, launch_s=launch_us * US)
    return replace(gpu, operators=replace(gpu.operators, host=host))


def _nearest(errors: Floats) -> float:
    """The time with the least soft-L1 loss; errors in between those tried are on the line through them."""
    losses = [float(np.sqrt(1 + (_at(errors, launch_us) / SCALE) ** 2).sum()) for launch_us in FINE_US]
    return float(FINE_US[np.argmin(losses)])


def _at(errors: Floats, launch_us: float) -> Floats:
    return np.array([np.interp(launch_us, TRIED_US, of) for of in errors])


def _mape(errors: Floats) -> float:
    return float(100 * np.abs(np.expm1(errors)).mean())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
