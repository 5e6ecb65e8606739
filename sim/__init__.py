"""Servecast forecasts what a vLLM deployment will do; these are its public names, imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING

from sim.version import __version__ as __version__

if TYPE_CHECKING:
    from sim.api import Result, calibrate, plan_memory, read_measured, simulate, validate
    from sim.comparison import Comparison, compare
    from sim.errors import SimError
    from sim.memory.plan import MemoryPlan
    from sim.search.entry import capacity, optimize
    from sim.specs.engine import EngineConfig
    from sim.specs.hardware import HardwareProfile
    from sim.specs.model import ModelSpec
    from sim.workload.readers import read_trace
    from sim.workload.trace import Trace


__all__ = [
    "Comparison",
    "EngineConfig",
    "HardwareProfile",
    "MemoryPlan",
    "ModelSpec",
    "Result",
    "SimError",
    "Trace",
    "calibrate",
    "capacity",
    "compare",
    "optimize",
    "plan_memory",
    "read_measured",
    "read_trace",
    "simulate",
    "validate",
]

_HOMES = {
    "Comparison": "sim.comparison",
    "EngineConfig": "sim.specs.engine",
    "HardwareProfile": "sim.specs.hardware",
    "MemoryPlan": "sim.memory.plan",
    "ModelSpec": "sim.specs.model",
    "Result": "sim.api",
    "SimError": "sim.errors",
    "Trace": "sim.workload.trace",
    "calibrate": "sim.api",
    "capacity": "sim.search.entry",
    "compare": "sim.comparison",
    "optimize": "sim.search.entry",
    "plan_memory": "sim.api",
    "read_measured": "sim.api",
    "read_trace": "sim.workload.readers",
    "simulate": "sim.api",
    "validate": "sim.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
