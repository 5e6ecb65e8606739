"""Fits what no kernel table holds to served runs: sorting for top-p, the exposed host, and the front end.

    python benchmarks/fit_serving.py ../shared/measured/serving.json

Five numbers for all runs, never one a model or a run: two of the sort and the exposed host time from the time per token at
the measured concurrency of dense models, two of the front end from what the time to first token of all has beyond its replay. How popular experts
are is not known, but fitted to the other models' times per token with these numbers (fit_routing.py). Prints the errors of each model when it is left out of
the fit, and writes `serving_fits.json`, which write_profiles.py puts into the profiles.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from sim.deployment import Deployment
from sim.engine.records import Floats
from sim.measure.replay import replay, serve
from sim.measure.runs import OpenLoop, Run, read_runs
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.steptime.protocol import StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.units import MS, NS, US

OUTPUT = Path(__file__).with_name("serving_fits.json")
START = np.array([3.5, 268.0, 170.0])  # ns an entry, bytes a logit, us exposed
BLOCK = 16


class Point(NamedTuple):
    """One stage of a run with what was measured in it; `num_decodes` by Little's law."""

    run: Run
    served: Deployment
    rate_rps: float
    num_decodes: float
    tpot_s: float
    ttft_s: float
    stage: int


def main(path: Path) -> None:
    points = points_of(path)
    dense = dense_of(points)
    fitted = fit_steps(dense)
    print(f"sort {fitted[0]:.2f} ns an entry and {fitted[1]:.0f} bytes a logit, {fitted[2]:.0f} us of the host exposed")
    left_out = _left_out(points)
    front_end = _fit_front_end(points, fitted)
    print(f"front end {front_end[0] / US:.0f} us and {front_end[1] / US:.1f} us for each request that streams")
    _write(fitted, front_end, left_out, len({point.run.id for point in dense}), len({point.run.id for point in points}))


def points_of(path: Path) -> list[Point]:
    """The stages of a file's runs that tell."""
    return [point for run in read_runs(path) for point in _points(run)]


def dense_of(points: Sequence[Point]) -> list[Point]:
    """Those of models without experts."""
    return [point for point in points if not point.served.model.has_experts]


def _points(run: Run) -> list[Point]:
    """The stages of a run that was measured well and is not queueing."""
    if run.quality != "A" or not isinstance(run.workload, OpenLoop):
        return []
    served = serve(run)
    return [
        _point(run, served, run.workload, figures.stage, figures.figures)
        for figures in run.measured
        if figures.stage is not None
    ]


def _point(run: Run, served: Deployment, workload: OpenLoop, stage: int, figures: dict[str, float]) -> Point:
    rate_rps, tpot_s = workload.stages[stage].rate_rps, figures["tpot_mean"] * MS
    num_decodes = rate_rps * tpot_s * workload.output_tokens
    return Point(run, served, rate_rps, num_decodes, tpot_s, figures["ttft_mean"] * MS, stage)


def _with(gpu: HardwareProfile, theta: Floats) -> HardwareProfile:
    operators = gpu.operators
    sampler = replace(operators.sampler, sort_entry_s=theta[0] * NS, sort_bytes_per_logit=theta[1])
    host = replace(operators.host, exposed_s=theta[2] * US)
    return replace(gpu, operators=replace(operators, sampler=sampler, host=host))


def _tpot_s(point: Point, theta: Floats) -> float:
    """The mean step at the measured concurrency: some steps also compute the uncached end of a prompt."""
    served, workload = point.served, point.run.workload
    assert isinstance(workload, OpenLoop), "points are of open loops"
    model = RooflineStepTime(served.model, _with(served.gpu, theta), served.engine)
    prompt_tokens = workload.prompts.shared_tokens + workload.prompts.unique_tokens
    context_tokens, tail = prompt_tokens + workload.output_tokens / 2, prompt_tokens % BLOCK or BLOCK
    count = max(1, round(point.num_decodes))
    decode_s = model.step_s(StepShape(count, _tokens_read(point, count, context_tokens), (), count))
    others = max(0, count - 1)
    chunk = ((tail, prompt_tokens - tail),)
    mixed_s = model.step_s(StepShape(others, _tokens_read(point, others, context_tokens), chunk, count))
    share_mixed = 1 - math.exp(-point.rate_rps * point.tpot_s)
    return (1 - share_mixed) * decode_s + share_mixed * mixed_s


def _tokens_read(point: Point, num_decodes: int, context_tokens: float) -> int:
    """What decodes with such contexts read from memory: prompts, and what groups of them begin with, come by turns, and are read in common."""
    workload, of_gpu = point.run.workload, point.served.config.common_reads
    assert isinstance(workload, OpenLoop), "points are of open loops"
    prompts = workload.prompts
    num_tokens = num_reads = 0
    for length, kinds in ((prompts.shared_tokens, prompts.num_groups), (prompts.unique_tokens, prompts.num_distinct)):
        readers, num_with_one_more = divmod(num_decodes, kinds)
        for count, each in ((num_with_one_more, readers + 1), (kinds - num_with_one_more, readers)):
            if each > 1:
                num_tokens += count * length
                num_reads += count * each * length
    num_spared = of_gpu.num_spared(num_decodes, num_reads, num_tokens) if of_gpu and num_tokens else 0
    return int(num_decodes * context_tokens) - num_spared


def log_errors(points: Sequence[Point], theta: Floats) -> Floats:
    """Of times per token."""
    return np.array([math.log(_tpot_s(point, theta) / point.tpot_s) for point in points])


def fit_steps(points: Sequence[Point]) -> Floats:
    """Least squares on log errors, every model weighing the same however many runs it has."""
    names = [point.run.model for point in points]
    weights = np.array([names.count(name) ** -0.5 for name in names])

    def residuals(theta: Floats) -> Floats:
        return 50 * weights * log_errors(points, theta)

    found = least_squares(residuals, START, loss="soft_l1", bounds=(0, np.inf), x_scale=START)
    return np.asarray(found.x, dtype=np.float64)


def _left_out(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Prints how far each model's stages are off when the fit has not seen it, and returns it."""
    print(f"{'left out':50}{'stages':>7}{'median %':>10}{'MAPE %':>8}{'bias %':>8}")
    every: list[float] = []
    table = {}
    for name in sorted({point.run.model for point in points}):
        unseen = [point for point in points if point.run.model == name]
        theta = fit_steps(dense_of([point for point in points if point.run.model != name]))
        errors = 100 * np.expm1(log_errors(unseen, theta))
        every += list(errors)
        table[name] = _sizes(list(errors))
        print(f"{name:50}{len(unseen):7}{np.median(abs(errors)):10.1f}{abs(errors).mean():8.1f}{errors.mean():8.1f}")
    print(f"{'all':50}{len(every):7}{np.median(np.abs(every)):10.1f}{np.mean(np.abs(every)):8.1f}{np.mean(every):8.1f}")
    return table | {"all": _sizes(every)}


def _sizes(errors: Sequence[float]) -> dict[str, float]:
    sizes = np.abs(errors)
    return {
        "stages": len(sizes),
        "mape": round(float(sizes.mean()), 1),
        "median_ape": round(float(np.median(sizes)), 1),
    }


def _fit_front_end(points: Sequence[Point], theta: Floats) -> Floats:
    """A constant and a part for each request that streams, from time to first token beyond what the engine takes."""
    gpus = {point.run.gpu: _with(load_gpu(point.run.gpu), theta) for point in points}
    replayed = {
        point.run.id: replay(point.run.model_copy(update={"clock": "engine"}), gpu=gpus[point.run.gpu])
        for point in points
    }
    waited_s = np.array([replayed[point.run.id].figures[point.stage]["ttft_mean"] * MS for point in points])
    measured_s = np.array([point.ttft_s for point in points])
    streaming = np.array([point.num_decodes for point in points])
    start = np.array([7 * MS, 45 * US])

    def residuals(x: Floats) -> Floats:
        return np.asarray(20 * np.log((waited_s + x[0] + x[1] * streaming) / measured_s), dtype=np.float64)

    found = least_squares(residuals, start, loss="soft_l1", bounds=(0, np.inf), x_scale=start)
    return np.asarray(found.x, dtype=np.float64)


def _write(
    theta: Floats, front_end: Floats, left_out: dict[str, dict[str, float]], num_dense: int, num_runs: int
) -> None:
    by, of = "fitted by fit_serving.py to", "open-loop runs of vLLM 0.15.1 on H100 and A100"
    fitted_on = f"{by} {num_dense} {of}, of dense models"
    sampler = {"sort_entry_ns": round(theta[0], 3), "sort_bytes_per_logit": round(theta[1], 1), "source": fitted_on}
    host = {
        "exposed_us": round(theta[2], 1),
        "front_end_us": round(front_end[0] / US, 0),
        "front_end_request_us": round(front_end[1] / US, 1),
        "source": f"the exposed part {fitted_on}; the front end {by} {num_runs} {of}",
    }
    OUTPUT.write_text(
        json.dumps({"sampler": sampler, "host": host, "left_out": left_out}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
