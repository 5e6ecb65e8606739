"""How far a derived profile is off: `python -m benchmarks.short_profiles`.

Each GPU whose kernels were measured is described by its data sheet alone, and completed as if it, and all that borrow from it, were
unknown. Steps of Llama-3.1-8B by that profile are set against those by the fitted one.
"""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from benchmarks.write_profiles import GPUS
from sim.report.tables import aligned
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, hardware_profile, load_gpu, profile_values
from sim.specs.hardware_file import HardwareFile, ProfileFile
from sim.specs.hardware_rules import complete, nearest_gpu
from sim.specs.models import load_model
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


class Row(NamedTuple):
    """Errors in % of the derived profile, in the median over steps."""

    gpu: str
    taken_from: str
    decode: float
    prefill: float


def rows() -> Iterator[Row]:
    """One for each GPU with kernels of its own."""
    for name, gpu in GPUS.items():
        if gpu.is_chip:
            file = ProfileFile.model_validate(
                {key: value for key, value in profile_values(name).items() if key in SHEET}
            )
            known = [
                HardwareFile.model_validate(profile_values(other)) for other in GPUS if GPUS[other].chip != gpu.chip
            ]
            derived = hardware_profile(HardwareFile.model_validate(complete(file, known)))
            errors = [median(_errors(load_gpu(name), derived, steps)) for steps in (DECODES, PREFILLS)]
            yield Row(name, nearest_gpu(file, known)[0].name, *errors)


def _errors(fitted: HardwareProfile, derived: HardwareProfile, steps: list[StepShape]) -> list[float]:
    expected, found = (_seconds(gpu, steps) for gpu in (fitted, derived))
    return [abs(own / its - 1) * 100 for own, its in zip(found, expected, strict=True)]


def _seconds(gpu: HardwareProfile, steps: list[StepShape]) -> list[float]:
    model = load_model("Llama-3.1-8B")
    times = RooflineStepTime(model, gpu, resolve_engine(EngineConfig(), model, gpu))
    return [times.step_s(step) for step in steps]


if __name__ == "__main__":
    print(aligned(("GPU left out", "taken from", "decode error %", "prefill error %"), rows()))
