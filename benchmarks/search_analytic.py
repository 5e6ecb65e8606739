"""How often the design's analytic scorer is wrong, and why: `python -m benchmarks.search_analytic`.

For each model, GPU, workload and target a space of the design's own knobs, with max_num_seqs and max_num_batched_tokens
beside them, is simulated as a whole: for throughput with all requests at once, for latency at a tenth of the design's rate.
The analytic winner is wrong where it scores worse than the simulated best by more than noise, or cannot serve the trace.
"""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from sim.measure.differences import NOISE
from sim.report.tables import aligned
from sim.search.analytic.candidates import analytic_candidates
from sim.search.analytic.default_space import MODEL_LENGTHS
from sim.search.analytic.performance_model import get_vllm_default_capture_sizes
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.blueprint import Params
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.objectives import parse_target
from sim.search.space import Space
from sim.specs.autotuning import AutotuningParameters
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.workload.autotuning import TargetMetric
from sim.workload.generate import generate
from sim.workload.load import Load

DEPLOYMENTS = (
    ("Llama-3.1-8B", "h100-sxm"),
    ("Llama-3.1-8B", "l40s"),
    ("Qwen3-32B", "h100-sxm"),
    ("Qwen3-14B", "a100-sxm-80gb"),
)
WORKLOADS = ("chatbot", "batch_inference", "interactive")
RATE_OF: dict[TargetMetric, float] = {"throughput": float("inf"), "latency": 0.1}  # of the design's rate, a cluster's
NUM_REQUESTS = 400
TARGETS: tuple[TargetMetric, ...] = ("throughput", "latency")


class Verdict(NamedTuple):
    """One case: what each scorer chose, how much worse the analytic choice is, and why."""

    case: str
    analytic: str
    simulated: str
    loss: float | None
    why: str


def main() -> None:
    cases = product(DEPLOYMENTS, WORKLOADS, TARGETS)
    verdicts = [_verdict(model, gpu, workload, target) for (model, gpu), workload, target in cases]
    print(aligned(("case", "analytic", "simulated", "worse by %", "why"), [_row(verdict) for verdict in verdicts]))
    wrong = [verdict for verdict in verdicts if verdict.why]
    print(f"\nwrong in {len(wrong)} of {len(verdicts)} cases")
    for why, count in Counter(verdict.why for verdict in wrong).most_common():
        print(f"{count:4}  {why}")


def _row(verdict: Verdict) -> tuple[object, ...]:
    return (*verdict[:3], None if verdict.loss is None else 100 * verdict.loss, verdict.why or "right")


def _verdict(model: str, gpu: str, name: str, metric: TargetMetric) -> Verdict:
    designed = WorkloadProfile.create_synthetic(name)
    rate = designed.requests_per_second * RATE_OF[metric]
    trace = generate(replace(designed.spec(), num_requests=NUM_REQUESTS, request_rate=rate))
    scenario = Scenario(load_model(model), load_gpu(gpu), Load(trace), parse_target(metric, ()))
    profile = replace(designed, target_metric=metric)
    space = Space(_space(profile))
    chosen = analytic_candidates(scenario, space, profile, AutotuningParameters())[0]
    outcomes = [(scenario.try_out(Task(params, explains=True)), params) for params in space.candidates()]
    found, best = min(
        ((one, params) for one, params in outcomes if one.is_feasible),
        key=lambda item: scenario.target.rank(item[0].metrics),
    )
    own = next(one for one, params in outcomes if params == chosen.params)
    loss = _loss(scenario, own, found)
    case = f"{model} on {gpu}, {name}, {metric}"
    return Verdict(
        case, _short(chosen.params), _short(best), loss, _why(own, chosen.outcome, chosen.params, best, loss)
    )


def _loss(scenario: Scenario, own: Outcome, best: Outcome) -> float | None:
    if not own.is_feasible:
        return None
    goal = scenario.target.goals[0]
    least = goal.loss(best.metrics)
    return (goal.loss(own.metrics) - least) / abs(least)


def _why(own: Outcome, analytic: Outcome, params: Params, best: Params, loss: float | None) -> str:
    """The first of the design's assumptions that does not hold."""
    if not analytic.is_feasible:
        return "it takes every candidate for infeasible: graph memory is counted far too high"
    if not own.is_feasible:
        return "its choice cannot hold the longest request, or does not start"
    if loss is None or loss <= NOISE:
        return ""
    if params["enforce_eager"] and not best["enforce_eager"]:
        return "it gives up CUDA graphs for cache that no request needs: their memory is counted far too high"
    others = [name for name in ("max_num_seqs", "max_num_batched_tokens") if params[name] != best[name]]
    if others:
        return f"it does not see {' and '.join(others)}"
    return f"its weights favour another {next(name for name in params if params[name] != best[name])}"


def _short(params: Params) -> str:
    sizes = params["cudagraph_capture_sizes"]
    graphs = "eager" if params["enforce_eager"] else f"graphs to {sizes[-1]}" if sizes else "default graphs"
    batch = f"seqs {params['max_num_seqs'] or '-'} tokens {params['max_num_batched_tokens'] or '-'}"
    return f"{params['gpu_memory_utilization']:g} {params['max_model_len']} {params['kv_cache_dtype']} {graphs} {batch}"


def _space(profile: WorkloadProfile) -> dict[str, tuple[object, ...]]:
    """Few values of each: a context that just holds the workload and a generous one, conservative and aggressive graphs."""
    longest = profile.get_expected_max_sequence_length(percentile=0.99)
    largest = max(4, profile.get_expected_max_batch_size(percentile=0.95))
    sizes = ((1, 2, 4), tuple(get_vllm_default_capture_sizes(min(128, largest))))
    return {
        "gpu_memory_utilization": (0.8, 0.9, 0.98),
        "cudagraph_capture_sizes": tuple(dict.fromkeys(sizes)),
        "enforce_eager": (False, True),
        "max_model_len": (next(length for length in MODEL_LENGTHS if length >= longest), 16384),
        "kv_cache_dtype": ("auto", "fp8_e4m3") if profile.target_metric == "throughput" else ("auto",),
        "max_num_seqs": (None, 64),
        "max_num_batched_tokens": (None, 1024),
    }


if __name__ == "__main__":
    main()
