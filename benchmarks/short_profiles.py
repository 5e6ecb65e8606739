"""How far a derived profile is off: `python -m benchmarks.short_profiles`.

Each GPU whose kernels were measured is described by its data sheet alone, and completed as if it, and all that borrow from it, were
unknown. Steps of Llama-3.1-8B by that profile are set against those by the fitted one.
"""

from collections.abc import Iterable, Iterator
from math import expm1, log
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.write_profiles import GPUS
from sim.report.tables import aligned
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, hardware_profile, load_gpu, profile_values
from sim.specs.hardware_file import HardwareFile, ProfileFile
from sim.specs.hardware_rules import complete, nearest_gpu
from sim.specs.models import load_model
from sim.specs.operator_fits import Basis
from sim.specs.vllm import resolve_engine
from sim.steptime.protocol import StepShape
from sim.steptime.roofline import RooflineStepTime

SHEET = (
    "name",
    "compute_capability",
    "memory_label_gb",
    "memory_bandwidth_tb_s",
    "peak_tflops",
    "link_gb_s",
    "num_linked_gpus",
)
DECODES = [StepShape(n, n * context, (), n) for n in (1, 8, 32, 128) for context in (500, 4000)]
PREFILLS = [StepShape(0, 0, ((tokens, before),), 1) for tokens in (512, 2048, 8192) for before in (0, 4000)]


SIBLINGS = frozenset({"h100-sxm", "h200-sxm"})  # the same chip with another memory; each is completed from the other


class Left(NamedTuple):
    """A GPU left out, and how far the steps of its derived profile are off, as logarithms of factors."""

    gpu: str
    taken_from: str
    decode: tuple[float, ...]
    prefill: tuple[float, ...]


def left_out() -> Iterator[Left]:
    """Each GPU with kernels of its own."""
    for name, gpu in GPUS.items():
        if gpu.is_chip:
            file = ProfileFile.model_validate(
                {key: value for key, value in profile_values(name).items() if key in SHEET}
            )
            known = [
                HardwareFile.model_validate(profile_values(other)) for other in GPUS if GPUS[other].chip != gpu.chip
            ]
            derived = hardware_profile(HardwareFile.model_validate(complete(file, known)))
            errors = (_errors(load_gpu(name), derived, steps) for steps in (DECODES, PREFILLS))
            yield Left(name, nearest_gpu(file, known)[0].name, *errors)


def kernel_errors(covered: float) -> dict[Basis, float]:
    """By where kernels come from: the logarithm of a factor within which so many per cent of the steps lie."""
    found = list(left_out())

    def band(some: Iterable[Left]) -> float:
        errors = [abs(error) for one in some for error in (*one.decode, *one.prefill)]
        return round(float(np.percentile(errors, covered)), 4)

    return {"fitted": 0.0, "derived": band(one for one in found if one.gpu in SIBLINGS), "generic": band(found)}


def rows() -> Iterator[tuple[str, str, float, float]]:
    """In % of the fitted profile's steps, in the median."""
    for one in left_out():
        yield one.gpu, one.taken_from, _median_percent(one.decode), _median_percent(one.prefill)


def _median_percent(errors: Iterable[float]) -> float:
    return median(100 * abs(expm1(error)) for error in errors)


def _errors(fitted: HardwareProfile, derived: HardwareProfile, steps: list[StepShape]) -> tuple[float, ...]:
    expected, found = (_seconds(gpu, steps) for gpu in (fitted, derived))
    return tuple(log(own / its) for own, its in zip(found, expected, strict=True))


def _seconds(gpu: HardwareProfile, steps: list[StepShape]) -> list[float]:
    model = load_model("Llama-3.1-8B")
    times = RooflineStepTime(model, gpu, resolve_engine(EngineConfig(), model, gpu))
    return [times.step_s(step) for step in steps]


if __name__ == "__main__":
    print(aligned(("GPU left out", "taken from", "decode error %", "prefill error %"), rows()))
