"""The start-up figures that vLLM logged, joined with the models they were logged for."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from tests.memory.shapes import GOLDEN, Shape, make_model
from tests.shared import SHARED

POINTS: dict[str, Any] = json.loads((GOLDEN / "memory_points.json").read_text())
SERVING = SHARED / "measured" / "serving.json"
NOT_EXPLAINED = ("Llama-4-Scout",)  # start-up memory beyond what the evidence explains


def model_of(point: dict[str, Any]) -> ModelSpec:
    if "shape" in point:
        return make_model(Shape(**POINTS["shapes"][point["shape"]]))
    return load_model(point["model"], quantization=point.get("quantization"))


def name_of(point: dict[str, Any]) -> str:
    name = str(point.get("model") or point["shape"]).rpartition("/")[2]
    return f"{name} TP{point.get('tp', 1)}" + (f" first of {n} stages" if (n := point.get("first_stage_of")) else "")


class LoggedBlocks(NamedTuple):
    """A measured run's start: what was served, and how many blocks vLLM logged."""

    name: str
    model: ModelSpec
    gpu: HardwareProfile
    engine: ResolvedEngine
    num_gpu_blocks: int

    @property
    def is_explained(self) -> bool:
        return not any(name in self.name for name in NOT_EXPLAINED)


def logged_blocks(path: Path = SERVING) -> list[LoggedBlocks]:
    """One entry for each model, GPU and TP size: the same count stands in runs with other token budgets."""
    runs = [run for run in json.loads(path.read_text())["runs"] if "num_gpu_blocks" in run.get("logged", {})]
    first: dict[str, LoggedBlocks] = {}
    for run in sorted(runs, key=_likeliest_origin):
        logged = _logged(run)
        first.setdefault(logged.name, logged)
    return list(first.values())


def _likeliest_origin(run: dict[str, Any]) -> tuple[bool, str]:
    """Nearly all runs had 2,048 batched tokens, so a count recorded once is likely theirs."""
    return run["engine"]["max_num_batched_tokens"] != 2048, run["id"]


def _logged(run: dict[str, Any]) -> LoggedBlocks:
    known = {name: value for name, value in run["engine"].items() if name in EngineConfig.__dataclass_fields__}
    model, gpu = load_model(run["model"]), load_gpu(run["gpu"])
    engine = resolve_engine(EngineConfig(**known), model, gpu, vllm_version=run["engine_version"].split()[1])
    name = f"{run['model'].rpartition('/')[2]} {run['gpu']} TP{engine.tensor_parallel_size}"
    return LoggedBlocks(name, model, gpu, engine, run["logged"]["num_gpu_blocks"])
