"""What the host takes for what no full CUDA graph holds: `python -m benchmarks.fit_launches ../shared/measured`.

Fitted to closed loops of Llama-3.1-70B whose arguments are known, a dense model of vLLM 0.10.2, whose prompts are longer than any graph:

- what a launch outside of graphs takes on the hosts of H200s and of B200s, each to the first tokens of its 20 runs with prompts of 1,000, where it tells. All other GPUs have H200's.
- the front end is Python on the same host: of B200's it takes as much longer than of H200's as a launch does.
- how long the GPU waits for a layer's attention between two graphs, to the times per token of H200's, which had piecewise graphs of decodes.

How many launches such a layer takes the host is fitted, as is that wait, to pairs of piecewise and full graphs on a B200 that users of vLLM measured (PAIRS).

Prints how far off it all is there and on H100, to which nothing is fitted, and writes `launch_fits.json`, which write_profiles.py puts into the
profiles. Nothing is fitted to the closed loops whose arguments are unknown (benchmarks/closed_loops.py), nearly all of them of experts.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from sim.engine.records import Floats
from sim.measure.published import completed
from sim.measure.replay import replay
from sim.measure.runs import ClosedLoop, Run, read_runs
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.units import MS, US

OUTPUT = Path(__file__).with_name("launch_fits.json")
OTHERS, BLACKWELL = "h200-sxm", "b200-sxm"
SCALE = 0.15  # log error from which on a run counts as an outlier, as for kernels
SHORT_PROMPT_TOKENS = 1024
ROUNDS = 2  # each number moves what the others are fitted to a little


class Pair(NamedTuple):
    """Median times per token of one server with piecewise and with full graphs, in ms."""

    num_layers: int
    piecewise_ms: float
    full_ms: float


PAIRS = (
    Pair(28, 3.64, 1.53),
    Pair(28, 3.79, 1.60),
    Pair(28, 4.75, 2.50),
    Pair(94, 13.37, 12.70),
    Pair(94, 23.93, 22.38),
    Pair(94, 30.22, 29.56),
)
"""vllm-project/vllm #47089, vLLM 0.23.0 on B200: Qwen3-0.6B and Qwen3-235B-A22B-FP8 (two GPUs), 1, 16 and 128 requests. The last is of means."""


class Launches(NamedTuple):
    """Microseconds of a launch on the hosts of two GPUs, launches of a layer between two graphs, and microseconds that the GPU waits for it."""

    h200_us: float
    b200_us: float
    of_layer: float
    gap_us: float

    def of(self, gpu: str) -> "Host":
        """Those of one GPU's host."""
        launch_us = self.b200_us if gpu == BLACKWELL else self.h200_us
        return Host(launch_us, self.of_layer * launch_us, self.gap_us, launch_us / self.h200_us)


class Host(NamedTuple):
    """As profiles have them; `front_end` is how many times as long it takes as on the hosts it was fitted on."""

    launch_us: float
    layer_us: float
    gap_us: float
    front_end: float


BOUNDS = {"h200_us": (20.0, 120.0), "b200_us": (20.0, 120.0), "of_layer": (0.5, 3.0), "gap_us": (0.0, 20.0)}
START = Launches(55.0, 85.0, 1.4, 9.0)


def main(folder: Path) -> None:
    runs = [run for run in completed(read_runs(folder / "closed_loop.json")) if run.engine_args_known]
    on = {gpu: [run for run in runs if run.gpu == gpu] for gpu in sorted({run.gpu for run in runs})}
    short = {gpu: [run for run in mine if _is_short(run)] for gpu, mine in on.items()}
    found = START
    for _ in range(ROUNDS):
        found = _best(found, "h200_us", lambda at: soft_l1(_errors(short[OTHERS], at)[:, 0]))
        found = _best(found, "b200_us", lambda at: soft_l1(_errors(short[BLACKWELL], at)[:, 0]))
        for name in ("of_layer", "gap_us"):
            found = _best(found, name, lambda at: soft_l1(np.append(_errors(on[OTHERS], at)[:, 1], _pair_errors(at))))
    print(found)
    mapes = {}
    for gpu, mine in on.items():
        sizes = 100 * np.abs(np.expm1(_errors(mine, found))).mean(axis=0)
        mapes[gpu] = dict(zip(("ttft", "tpot"), np.round(sizes, 1).tolist(), strict=True))
        print(f"{gpu:12}{len(mine):4} runs, MAPE in %: {mapes[gpu]}")
    for pair in PAIRS:
        print(f"{pair}: {_piecewise_ms(pair, found):.2f} ms")
    fitted = {gpu: _rounded(found.of(gpu)) | {"source": _source(gpu, len(short[gpu]))} for gpu in (OTHERS, BLACKWELL)}
    OUTPUT.write_text(json.dumps(fitted | {"mape": mapes}, indent=2) + "\n", encoding="utf-8")


def _source(gpu: str, num_runs: int) -> str:
    return (
        f"fitted by fit_launches.py to first tokens of {num_runs} closed loops of Llama-3.1-70B on {gpu}, layers and gaps to times per token on"
        f" {OTHERS} and {len(PAIRS)} pairs of graphs on {BLACKWELL}"
    )


def _is_short(run: Run) -> bool:
    return isinstance(run.workload, ClosedLoop) and run.workload.prompt_tokens.uniform[1] <= SHORT_PROMPT_TOKENS


def _rounded(host: Host) -> dict[str, float]:
    return {name: round(value, 2 if name == "front_end" else 1) for name, value in host._asdict().items()}


def _best(start: Launches, name: str, loss: Callable[[Launches], float]) -> Launches:
    """With that one where it makes the loss least, and the others as they are."""
    low, high = BOUNDS[name]
    found = minimize_scalar(
        lambda value: loss(start._replace(**{name: value})),
        bounds=(low, high),
        method="bounded",
        options={"xatol": (high - low) / 200},
    )
    return start._replace(**{name: float(found.x)})


def soft_l1(errors: Floats) -> float:
    """Soft L1, in the mean."""
    return float(np.sqrt(1 + (errors / SCALE) ** 2).mean())


def _errors(runs: Sequence[Run], launches: Launches) -> Floats:
    """Of each run, the log errors of the mean time to the first token and per token."""
    return np.array([log_errors(run, _with(load_gpu(run.gpu), launches.of(run.gpu))) for run in runs])


def log_errors(run: Run, gpu: HardwareProfile) -> list[float]:
    figures = replay(run, gpu=gpu).figures[None]
    measured = next(one.figures for one in run.measured if one.stage is None)
    return [float(np.log(figures[name] / measured[name])) for name in ("ttft_mean", "tpot_mean")]


def _pair_errors(launches: Launches) -> Floats:
    return np.log([_piecewise_ms(pair, launches) / pair.piecewise_ms for pair in PAIRS])


def _piecewise_ms(pair: Pair, launches: Launches) -> float:
    """What such a step takes: as long as with a full graph and the waits between graphs, or as long as the host does."""
    host, exposed_s = launches.of(BLACKWELL), load_gpu(BLACKWELL).operators.host.exposed_s
    waits_s, layers_s = pair.num_layers * host.gap_us * US, pair.num_layers * host.layer_us * US
    return max(pair.full_ms + waits_s / MS, (layers_s + exposed_s) / MS)


def _with(gpu: HardwareProfile, host: Host) -> HardwareProfile:
    front_end = load_gpu(OTHERS).operators.host
    fits = replace(
        gpu.operators.host,
        launch_s=host.launch_us * US,
        layer_s=host.layer_us * US,
        gap_s=host.gap_us * US,
        front_end_s=host.front_end * front_end.front_end_s,
        front_end_request_s=host.front_end * front_end.front_end_request_s,
    )
    return replace(gpu, operators=replace(gpu.operators, host=fits))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
