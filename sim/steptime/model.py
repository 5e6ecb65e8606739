"""Chooses how step times are computed: the roofline of a model on a GPU, or a file that replaces it."""

from pathlib import Path

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.steptime.linear import read_linear
from sim.steptime.protocol import StepTimeModel
from sim.steptime.roofline import DEFAULT_TRAFFIC, Composition, RooflineStepTime, Traffic


def step_time_model(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    *,
    composition: Composition = "additive",
    traffic: Traffic = DEFAULT_TRAFFIC,
) -> RooflineStepTime:
    """The roofline of `model` on `tensor_parallel_size` GPUs; `composition` says how mixed steps are run."""
    return RooflineStepTime(model, gpu, engine, composition, traffic)


def load_step_time_model(path: str | Path) -> StepTimeModel:
    """The step-time model in a YAML file (`kind: linear`). Raises ProfileError where the file is invalid."""
    return read_linear(Path(path))
