"""The autotuning design's optimizer and its cluster, under the design's names.

What runs underneath: the design's formulas (sim/search/analytic/performance_model.py) score every combination of a grid; then, which
the design does not do, the best are simulated in order of score, and the first that vLLM would start and that keeps the latency budget
is the answer. `sim.optimize` searches by simulation alone, and is what to use without a reason to stay with the design.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sim.deployment import GpuLike, ModelLike, as_gpu, as_model
from sim.errors import ConfigError, DoesNotFitError, nearest
from sim.search.analytic.default_space import CONSERVATIVE_SIZES, MODEL_LENGTHS, captured_sizes
from sim.search.analytic.performance_model import SpecConfig, vLLMPerformanceModel
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.evaluate import Scenario, Task
from sim.search.objectives import parse_target
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import EngineConfig
from sim.specs.serve_command import serve_command
from sim.specs.slo import Slo
from sim.units import GIB, MS
from sim.workload.load import Load

MOST_SIMULATED = 20  # configurations, each on 1,000 requests
FIGURES = ("p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", "request_throughput")
SEARCHED = ("gpu_memory_utilization", "cudagraph_capture_sizes", "max_model_len", "kv_cache_dtype")


@dataclass(frozen=True)
class ClusterSpec:
    """GPUs of one kind: `gpu` by name, path or profile, `num_devices` of them."""

    gpu: GpuLike
    num_devices: int = 1

    @property
    def gpu_memory_per_device(self) -> float:
        """GiB, as the design counts them."""
        return as_gpu(self.gpu).memory_bytes / GIB


@dataclass(frozen=True)
class Layout:
    """How an instance is cut over GPUs, and how many instances there are."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp * self.dp


class vLLMConfigOptimizer:  # noqa: N801 - the design's name
    """Searches engine arguments of one model on one kind of GPU, each instance cut as `layout` says."""

    def __init__(
        self,
        model_name: ModelLike,
        cluster_spec: ClusterSpec,
        tuning_params: AutotuningParameters | None = None,
        *,
        layout: Layout | None = None,
    ) -> None:
        """Raises SimError for a model or GPU that is not known."""
        self.model = as_model(model_name, EngineConfig())
        self.gpu = as_gpu(cluster_spec.gpu)
        self.cluster_spec = cluster_spec
        self.tuning_params = tuning_params or AutotuningParameters()
        self.layout = layout or Layout()

    def search_optimal_config(
        self, workload: WorkloadProfile, search_space: Mapping[str, Sequence[Any]] | None = None
    ) -> dict[str, Any]:
        """The best configuration by the formulas that, simulated, starts and keeps the latency budget on P99 TTFT.

        Keys as in the design: `optimal_config`, `performance_score`, `memory_breakdown`, `predictions` and `all_evaluated_configs`, pairs
        of a configuration and its score; and `simulated`, what `simulate` says of it. Where none of the first MOST_SIMULATED keeps
        the budget, the answer is the one that is nearest to it. Raises DoesNotFitError where nothing is feasible or starts.
        """
        space = self.get_default_search_space(workload) if search_space is None else search_space
        configs = [self.config(params) for params in self.generate_configs(space)]
        evaluated = [
            (config, self.evaluate_config(config, workload)) for config in configs if self.is_feasible_config(config)
        ]
        if not evaluated:
            raise DoesNotFitError(
                f"by the design's formulas none of {len(configs):,} configurations of {self.model.name} is feasible."
            )
        best, score, simulated = self._kept(workload, sorted(evaluated, key=lambda pair: -pair[1]))
        return {
            "optimal_config": best,
            "performance_score": score,
            "memory_breakdown": best.calculate_memory_breakdown(),
            "predictions": self.get_config_predictions(best, workload),
            "all_evaluated_configs": evaluated,
            "simulated": simulated,
        }

    def _kept(
        self, workload: WorkloadProfile, ranked: Sequence[tuple[vLLMPerformanceModel, float]]
    ) -> tuple[vLLMPerformanceModel, float, dict[str, Any]]:
        """The first that keeps the budget, or of those tried the nearest to it. Raises DoesNotFitError where none starts."""
        tried = []
        for config, score in ranked[:MOST_SIMULATED]:
            simulated = self.simulate(config, workload)
            if simulated["meets_latency_budget"]:
                return config, score, simulated
            tried.append((config, score, simulated))
        started = [one for one in tried if one[2]["feasible"]]
        if not started:
            raise DoesNotFitError(
                f"none of the {len(tried)} configurations that the formulas hold best starts; {tried[0][2]['reason']}"
            )
        return min(started, key=lambda one: one[2]["latency_violation"])

    def simulate(self, config: vLLMPerformanceModel, workload: WorkloadProfile) -> dict[str, Any]:
        """1,000 requests of the workload on `dp` instances of a configuration: `feasible` or the `reason` why not, the
        `serve_command`, whether P99 TTFT keeps the budget, and FIGURES.
        """
        budget = Slo("ttft", 99.0, workload.latency_budget_ms * MS)
        engine = self._engine(config)
        scenario = Scenario(
            self.model,
            self.gpu,
            Load(workload.trace()),
            parse_target("throughput", (budget,)),
            base=engine,
            source=self.model,
        )
        outcome = scenario.try_out(Task({"replicas": self.layout.dp}))
        violation = scenario.target.violation(outcome.metrics) if outcome.is_feasible else None
        return {
            "feasible": outcome.is_feasible,
            "reason": outcome.reason,
            "serve_command": serve_command(self.model.name, engine),
            "meets_latency_budget": violation == 0,
            "latency_violation": violation,
            **{name: outcome.metrics.get(name) for name in FIGURES},
        }

    def _engine(self, config: vLLMPerformanceModel) -> EngineConfig:
        sizes = tuple(config.cudagraph_capture_sizes)
        return EngineConfig(
            tensor_parallel_size=self.layout.tp,
            pipeline_parallel_size=self.layout.pp,
            gpu_memory_utilization=config.gpu_memory_utilization,
            cudagraph_capture_sizes=sizes or None,
            enforce_eager=not sizes,
            max_model_len=min(config.max_model_len, self.model.max_model_len),
            kv_cache_dtype=config.kv_cache_dtype,
        )

    def config(self, params: Mapping[str, Any]) -> vLLMPerformanceModel:
        """The design's model of a configuration on each GPU of an instance. Raises ConfigError for a knob it does not know.

        Deliberate difference: the design divides neither weights nor cache among the GPUs of an instance.
        """
        for name in params:
            if name not in SEARCHED:
                raise ConfigError(f"the design searches {', '.join(SEARCHED)}, got {name!r}.{nearest(name, SEARCHED)}")
        defaults = {"gpu_memory_utilization": 0.9, "max_model_len": self.model.max_model_len}
        whole = vLLMPerformanceModel.from_transformers_config(
            SpecConfig.of(self.model),
            self.cluster_spec.gpu_memory_per_device,
            **{**defaults, **params},
            tuning_params=self.tuning_params,
        )
        tp, pp = self.layout.tp, self.layout.pp
        return replace(
            whole,
            model_memory_gb=whole.model_memory_gb / (tp * pp),
            num_layers=-(-whole.num_layers // pp),
            num_key_value_heads=max(1, whole.num_key_value_heads // tp),
        )

    def get_default_search_space(self, workload: WorkloadProfile) -> dict[str, list[Any]]:
        """The design's four knobs; an fp8 cache where throughput is the target."""
        longest, limits = workload.get_expected_max_sequence_length(percentile=0.99), self.tuning_params
        utilizations = [limits.min_gpu_memory_utilization, 0.85, 0.90, 0.95, limits.max_gpu_memory_utilization]
        sizes = [[], *map(list, (CONSERVATIVE_SIZES, *captured_sizes(workload)))]
        return {
            "gpu_memory_utilization": utilizations,
            "cudagraph_capture_sizes": sizes,
            "max_model_len": [length for length in MODEL_LENGTHS if length >= longest],
            "kv_cache_dtype": ["auto", "fp8_e4m3"] if workload.target_metric == "throughput" else ["auto"],
        }

    def generate_configs(self, search_space: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
        """All combinations, the last knob changing fastest."""
        for values in product(*search_space.values()):
            yield dict(zip(search_space, values, strict=True))

    def is_feasible_config(self, config: vLLMPerformanceModel) -> bool:
        """By the formulas."""
        return config.is_feasible_config()

    def evaluate_config(self, config: vLLMPerformanceModel, workload: WorkloadProfile) -> float:
        """The design's score, higher is better."""
        return config.evaluate_config(workload)

    def get_config_predictions(self, config: vLLMPerformanceModel, workload: WorkloadProfile) -> dict[str, Any]:
        """By the formulas."""
        return config.get_config_predictions(workload)


def optimize_vllm_config_for_cluster(
    model_name: ModelLike,
    cluster_spec: ClusterSpec,
    workload: WorkloadProfile,
    parallelism_strategy: Mapping[str, int],
    tuning_params: AutotuningParameters | None = None,
) -> dict[str, Any]:
    """An instance's best configuration on `tp` x `pp` GPUs, and what `dp` of them do: the design's figures, and `simulated`.

    Raises ConfigError where the strategy takes more GPUs than there are.
    """
    layout = _layout(parallelism_strategy, cluster_spec)
    found = vLLMConfigOptimizer(model_name, cluster_spec, tuning_params, layout=layout).search_optimal_config(workload)
    predictions, memory = found["predictions"], found["memory_breakdown"]
    return {
        "vllm_config": found["optimal_config"],
        "parallelism_strategy": dict(parallelism_strategy),
        "cluster_predictions": {
            "total_throughput": predictions["effective_batch_size"] * layout.dp,
            "instances_per_cluster": layout.dp,
            "memory_efficiency": memory["kv_cache_memory"] / cluster_spec.gpu_memory_per_device,
            "graph_coverage": predictions["graph_coverage"],
        },
        "simulated": found["simulated"],
        "recommendations": generate_deployment_recommendations(found, parallelism_strategy),
    }


def _layout(strategy: Mapping[str, int], cluster: ClusterSpec) -> Layout:
    for name, count in strategy.items():
        if name not in ("tp", "pp", "dp") or isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"a parallelism strategy has whole numbers of at least 1 for tp, pp and dp, got {name} {count!r}."
            )
    layout = Layout(**strategy)
    if layout.num_gpus > cluster.num_devices:
        raise ConfigError(
            f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} take {layout.num_gpus} GPUs, and the cluster has {cluster.num_devices}."
        )
    return layout


def generate_deployment_recommendations(
    optimal_result: Mapping[str, Any], parallelism_strategy: Mapping[str, int]
) -> list[str]:
    """The design's two sentences where their figures call for them, and what the simulation found wrong."""
    config, simulated = optimal_result["optimal_config"], optimal_result["simulated"]
    parameters: AutotuningParameters = config.tuning_params
    share = optimal_result["memory_breakdown"]["kv_cache_memory"] / config.gpu_memory_capacity_gb
    said = []
    if share < parameters.low_kv_cache_ratio:
        said.append("Consider reducing CUDA graph capture sizes to free more memory for KV cache")
    if optimal_result["predictions"]["graph_coverage"] < parameters.low_graph_coverage:
        said.append("Low CUDA graph coverage - consider adjusting capture sizes for your workload")
    if not simulated["meets_latency_budget"]:
        gpus = " x ".join(f"{name} {count}" for name, count in parallelism_strategy.items())
        said.append(
            f"Simulated on {gpus}, P99 TTFT is {simulated['p99_ttft_ms']:,.0f} ms, beyond the latency budget; use more instances or a lower rate"
        )
    return said
