"""The start-up figures that vLLM logged, joined with the models they were logged for."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from sim.memory.cuda_graphs import CapturedGraphs
from sim.specs.capture_sizes import listed_sizes
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.releases import parse_version, release_for
from sim.specs.vllm import resolve_engine
from tests.memory.shapes import GOLDEN, Shape, make_model
from tests.shared import SHARED

POINTS: dict[str, Any] = json.loads((GOLDEN / "memory_points.json").read_text())
SERVING = SHARED / "measured" / "serving.json"
NOT_EXPLAINED = ("Llama-4-Scout",)  # start-up memory beyond what the evidence explains
OLDEST = "0.8.5"  # of the versions whose capture sizes are known; V0 captured the same


def model_of(point: dict[str, Any]) -> ModelSpec:
    if "shape" in point:
        return make_model(Shape(**POINTS["shapes"][point["shape"]]))
    return load_model(point["model"], quantization=point.get("quantization"))


def engine_of(model: ModelSpec, point: dict[str, Any]) -> ResolvedEngine:
    """The point's parallelism on an H100, all else as vLLM chooses."""
    config = EngineConfig(tensor_parallel_size=point.get("tp", 1), pipeline_parallel_size=point.get("pp", 1))
    return resolve_engine(config, model, load_gpu("h100-sxm"))


def graphs_of(point: dict[str, Any]) -> CapturedGraphs:
    """The sizes that version lists, up to the largest of each mode."""
    rules = release_for(max(point["version"], OLDEST, key=parse_version)).capture
    sizes = listed_sizes(rules, 512, max_num_seqs=1, max_num_batched_tokens=512)
    piecewise, full = (
        tuple(size for size in sizes if size <= point[f"{mode}_up_to"]) for mode in ("piecewise", "full")
    )
    return CapturedGraphs(piecewise, full)


def name_of(point: dict[str, Any]) -> str:
    name = str(point.get("model") or point["shape"]).rpartition("/")[2]
    return f"{name} TP{point.get('tp', 1)}" + (f" first of {n} stages" if (n := point.get("pp")) else "")


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
