"""A search by the formulas of the autotuning design, without simulation of each candidate."""

from collections.abc import Mapping
from typing import Any

from sim.errors import ConfigError, SimError
from sim.search.analytic.performance_model import SpecConfig, vLLMPerformanceModel
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.blueprint import Params
from sim.search.evaluate import Outcome, Scenario
from sim.search.fidelity import Round, Search
from sim.search.ranking import Candidate
from sim.search.slices import Slice
from sim.search.space import Space
from sim.specs.autotuning import AutotuningParameters
from sim.units import GIB

SCORE = "analytic_score"
MOST_CANDIDATES = 20_000


def analytic_search(search: Search, workload: WorkloadProfile, parameters: AutotuningParameters) -> list[Candidate]:
    """All candidates with the formulas' figures. They are replayed in order of score up to the first that can serve the trace."""
    if search.space.size > MOST_CANDIDATES:
        raise ConfigError(
            f"the analytic scorer tries every candidate, at most {MOST_CANDIDATES:,}, got {search.space.size:,}."
        )
    ordered = analytic_candidates(search.scenario, search.space, workload, parameters)
    for place, candidate in enumerate(ordered):
        (ordered[place],) = search.replay([candidate.params], Round("finals", Slice(search.split.seen), 1.0))
        if ordered[place].outcome.is_feasible or not candidate.outcome.is_feasible:
            break
    return ordered


def analytic_outcome(
    scenario: Scenario, params: Params, workload: WorkloadProfile, parameters: AutotuningParameters
) -> Outcome:
    """The design's predictions and score, or why it holds the configuration infeasible.

    It knows only memory utilisation, capture sizes, context length and the dtype of the cache; other knobs change nothing.
    """
    try:
        engine = scenario.deploy(params).engine
    except SimError as error:
        return Outcome(str(error), {})
    model = vLLMPerformanceModel.from_transformers_config(
        SpecConfig.of(scenario.model),
        gpu_memory_capacity_gb=scenario.gpu.memory_bytes / GIB,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_model_len=engine.max_model_len or scenario.model.max_model_len,
        cudagraph_capture_sizes=engine.cudagraph_capture_sizes,
        kv_cache_dtype=engine.kv_cache_dtype,
        tuning_params=parameters,
    )
    if not model.is_feasible_config():
        left = model.calculate_memory_breakdown()["kv_cache_memory"]
        return Outcome(f"by the analytic formulas {left:.1f} GiB are left for the KV cache, too little.", {})
    return Outcome(None, model.get_config_predictions(workload) | {SCORE: model.evaluate_config(workload)})


def analytic_candidates(
    scenario: Scenario, space: Space, workload: WorkloadProfile, parameters: AutotuningParameters
) -> list[Candidate]:
    """Every candidate of the space, best score first; infeasible ones last."""
    candidates = []
    for params in space.candidates():
        outcome = analytic_outcome(scenario, params, workload, parameters)
        made = scenario.blueprint
        candidates.append(Candidate(params, made.num_flags(params), made.num_gpus(params), outcome, 0.0))
    return sorted(candidates, key=lambda candidate: (-_score(candidate.metrics), candidate.num_flags, candidate.key))


def _score(metrics: Mapping[str, Any]) -> float:
    return float(metrics.get(SCORE, float("-inf")))
