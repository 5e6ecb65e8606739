"""Servecast forecasts what a vLLM deployment will do; these are its public names, imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING

from sim.version import __version__ as __version__

if TYPE_CHECKING:
    from sim.api import Result, calibrate, plan_memory, read_measured, simulate, validate
    from sim.comparison import Comparison, compare
    from sim.errors import SimError
    from sim.explanation.explain import Explanation, explain
    from sim.explanation.kv_cache import kv_cache_metrics
    from sim.measure.side_by_side import ComparedResults, compare_results
    from sim.memory.plan import MemoryPlan
    from sim.search.analytic.config_optimizer import (
        ClusterSpec,
        generate_deployment_recommendations,
        optimize_vllm_config_for_cluster,
        vLLMConfigOptimizer,
    )
    from sim.search.analytic.performance_model import (
        calculate_model_memory_from_config,
        estimate_activation_memory_from_config,
        get_vllm_default_capture_sizes,
        vLLMPerformanceModel,
    )
    from sim.search.analytic.workload_profile import WorkloadProfile
    from sim.search.entry import capacity, optimize
    from sim.specs.autotuning import AutotuningParameters
    from sim.specs.engine import EngineConfig
    from sim.specs.hardware import HardwareProfile
    from sim.specs.model import ModelSpec
    from sim.specs.presets import preset
    from sim.workload.readers import read_trace
    from sim.workload.spec import WorkloadSpec
    from sim.workload.trace import Trace


__all__ = [
    "AutotuningParameters",
    "ClusterSpec",
    "ComparedResults",
    "Comparison",
    "EngineConfig",
    "Explanation",
    "HardwareProfile",
    "MemoryPlan",
    "ModelSpec",
    "Result",
    "SimError",
    "Trace",
    "WorkloadProfile",
    "WorkloadSpec",
    "calculate_model_memory_from_config",
    "calibrate",
    "capacity",
    "compare",
    "compare_results",
    "estimate_activation_memory_from_config",
    "explain",
    "generate_deployment_recommendations",
    "get_vllm_default_capture_sizes",
    "kv_cache_metrics",
    "optimize",
    "optimize_vllm_config_for_cluster",
    "plan_memory",
    "preset",
    "read_measured",
    "read_trace",
    "simulate",
    "vLLMConfigOptimizer",
    "vLLMPerformanceModel",
    "validate",
]

_HOMES = {
    "AutotuningParameters": "sim.specs.autotuning",
    "ClusterSpec": "sim.search.analytic.config_optimizer",
    "ComparedResults": "sim.measure.side_by_side",
    "Comparison": "sim.comparison",
    "EngineConfig": "sim.specs.engine",
    "Explanation": "sim.explanation.explain",
    "HardwareProfile": "sim.specs.hardware",
    "MemoryPlan": "sim.memory.plan",
    "ModelSpec": "sim.specs.model",
    "Result": "sim.api",
    "SimError": "sim.errors",
    "Trace": "sim.workload.trace",
    "WorkloadProfile": "sim.search.analytic.workload_profile",
    "WorkloadSpec": "sim.workload.spec",
    "calculate_model_memory_from_config": "sim.search.analytic.performance_model",
    "calibrate": "sim.api",
    "capacity": "sim.search.entry",
    "compare": "sim.comparison",
    "compare_results": "sim.measure.side_by_side",
    "explain": "sim.explanation.explain",
    "estimate_activation_memory_from_config": "sim.search.analytic.performance_model",
    "generate_deployment_recommendations": "sim.search.analytic.config_optimizer",
    "get_vllm_default_capture_sizes": "sim.search.analytic.performance_model",
    "kv_cache_metrics": "sim.explanation.kv_cache",
    "optimize": "sim.search.entry",
    "optimize_vllm_config_for_cluster": "sim.search.analytic.config_optimizer",
    "plan_memory": "sim.api",
    "preset": "sim.specs.presets",
    "read_measured": "sim.api",
    "read_trace": "sim.workload.readers",
    "simulate": "sim.api",
    "vLLMConfigOptimizer": "sim.search.analytic.config_optimizer",
    "vLLMPerformanceModel": "sim.search.analytic.performance_model",
    "validate": "sim.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
