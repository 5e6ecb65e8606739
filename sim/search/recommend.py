"""Advice on the result of a search: sentences with the figures behind them, and limits to raise if no candidate keeps all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.errors import listed
from sim.memory.plan import MemoryPlan
from sim.search.blueprint import OF_ANSWERS, REPLICAS, Params
from sim.search.evaluate import Outcome
from sim.search.neighbours import Sensitivity
from sim.search.objectives import Target, excess
from sim.search.ranking import Candidate
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import ResolvedEngine
from sim.specs.online_quantization import AHEAD_OF_TIME
from sim.specs.slo import Slo
from sim.units import GIB

HIGH_KV_USAGE = 0.95
HIGH_UTILIZATION = 0.95
LOW_BUSY = 0.6
NARROW_MARGIN = 0.1
MANY_WAIT = 0.05


class Facts(NamedTuple):
    """What the advice is based on: the winner as started, its replay of the whole trace, its neighbours, the perturbation."""

    engine: ResolvedEngine
    plan: MemoryPlan
    outcome: Outcome
    target: Target
    robustness: float
    parameters: AutotuningParameters
    neighbours: Sensitivity
    steps_off: float


class Remedy(NamedTuple):
    """A change of a knob that may help."""

    text: str
    knob: str
    is_that_way: Callable[[Any], bool]


def _advised(facts: Facts, *remedies: Remedy) -> str:
    """The remedies that the search has not tried beside the winner; one that it has tried is no better than the winner."""

    def is_tried(remedy: Remedy) -> bool:
        points = facts.neighbours.get(remedy.knob, ())
        return any(point.outcome.is_feasible and remedy.is_that_way(point.value) for point in points)

    untried = [remedy.text for remedy in remedies if not is_tried(remedy)]
    return " or ".join(untried) if untried else "what would change that was tried and scores no better"


def _more_than(current: float) -> Callable[[Any], bool]:
    return lambda value: value is not None and value > current


def _fewer_than(current: float) -> Callable[[Any], bool]:
    return lambda value: value is not None and value < current


def recommendations(facts: Facts, pools: Mapping[str, Facts] | None = None) -> tuple[str, ...]:
    """Sentences on what to watch and what to try next; empty if nothing stands out. Those on an engine are of each pool, by name."""
    if pools is None:
        return (*_of_engine(facts), *_of_all(facts))
    named = (f"{name}: {sentence}" for name, pool in pools.items() for sentence in _of_engine(pool))
    return (*named, *_of_all(facts))


def on_answers(params: Params) -> Iterator[str]:
    """What was chosen for its speed and changes what the model answers, for somebody to check."""
    chosen = [f"{name}={value}" for name, value in params.items() if value and name.rpartition(".")[2] in OF_ANSWERS]
    if chosen:
        yield (
            f"{listed(chosen, 'and')} {'changes' if len(chosen) == 1 else 'change'} what the model answers, which no replay shows: "
            "measure its quality on your own tasks first."
        )
    for value in {value: None for name, value in params.items() if name.rpartition(".")[2] == "quantization"}:
        if value in AHEAD_OF_TIME:
            yield f"vLLM quantises to {value} ahead of time only: serve a checkpoint that is stored so, without the flag."


def _of_engine(facts: Facts) -> Iterator[str]:
    for advise in (_graphs, _kv_cache, _memory, _queues):
        yield from advise(facts)


def _of_all(facts: Facts) -> Iterator[str]:
    for advise in (_load, _limits):
        yield from advise(facts)


def _graphs(facts: Facts) -> Iterator[str]:
    coverage = facts.outcome.metrics["cudagraph_step_fraction"]
    if facts.engine.cudagraph_capture_sizes and coverage is not None and coverage < facts.parameters.low_graph_coverage:
        largest = facts.engine.cudagraph_capture_sizes[-1]
        larger = Remedy(
            f"capture larger sizes than {largest}",
            "cudagraph_capture_sizes",
            lambda sizes: sizes is None or sizes[-1] > largest,
        )
        yield (
            f"Low CUDA graph coverage: {coverage:.0%} of steps replay a graph, for your batches exceed {largest}; "
            f"{_advised(facts, larger)}."
        )
    sizes, seqs = facts.engine.cudagraph_capture_sizes, facts.engine.max_num_seqs
    has_decode_graphs = facts.engine.cudagraph_mode.startswith("FULL_")
    if has_decode_graphs and sizes and seqs <= sizes[-1] and seqs not in sizes:
        fitting = [size for size in sizes if size <= seqs]
        below = fitting[-1] if fitting else 0
        yield (
            f"max_num_seqs={seqs} is no captured size: batches of {below + 1} to {seqs} miss the full graph; "
            f"add {seqs} to cudagraph_capture_sizes."
        )


def _kv_cache(facts: Facts) -> Iterator[str]:
    metrics, plan = facts.outcome.metrics, facts.plan
    share = plan.kv_cache_bytes / plan.total_bytes
    if share < facts.parameters.low_kv_cache_ratio:
        size = f"{share:.0%} of the GPU's memory ({plan.kv_cache_bytes / GIB:.1f} GiB)"
        yield f"The KV cache has {size}; for more, {_advised(facts, *_roomier(facts))}."
    if metrics["num_preemptions"]:
        fewer = Remedy("lower max_num_seqs", "max_num_seqs", _fewer_than(facts.engine.max_num_seqs))
        yield (
            f"{metrics['num_preemptions']:,} preemptions: the KV cache runs full and requests are computed twice; "
            f"{_advised(facts, fewer, *_roomier(facts))}."
        )
    elif (metrics["max_kv_cache_usage"] or 0.0) > HIGH_KV_USAGE:
        yield f"The KV cache fills up to {metrics['max_kv_cache_usage']:.0%}: a little more load and requests are preempted."


def _roomier(facts: Facts) -> tuple[Remedy, ...]:
    """Remedies that enlarge the KV cache."""
    num_sizes, ranks = len(facts.engine.cudagraph_capture_sizes), facts.engine.tensor_parallel_size
    return (
        Remedy("capture fewer sizes", "cudagraph_capture_sizes", lambda sizes: bool(sizes) and len(sizes) < num_sizes),
        Remedy("use an fp8 cache", "kv_cache_dtype", lambda dtype: dtype is not None and dtype.startswith("fp8")),
        Remedy("use more GPUs", "tensor_parallel_size", _more_than(ranks)),
    )


def _memory(facts: Facts) -> Iterator[str]:
    utilization = facts.engine.gpu_memory_utilization
    if utilization >= HIGH_UTILIZATION and facts.engine.kv_cache_memory_bytes is None:
        left = facts.plan.total_bytes - facts.plan.requested_bytes
        yield (
            f"gpu_memory_utilization={utilization:g} leaves {left / GIB:.1f} GiB for fragmentation and whatever else uses "
            "the GPU; check that the server starts."
        )


def _queues(facts: Facts) -> Iterator[str]:
    queued = facts.outcome.limits.queued if facts.outcome.limits else {}
    budget, seqs = facts.engine.max_num_batched_tokens, facts.engine.max_num_seqs
    replicas = Remedy("add replicas", REPLICAS, _more_than(facts.outcome.metrics[REPLICAS]))
    advice = {
        "token_budget": [
            Remedy(f"raise max_num_batched_tokens above {budget:,}", "max_num_batched_tokens", _more_than(budget))
        ],
        "max_num_seqs": [Remedy(f"raise max_num_seqs above {seqs:,}", "max_num_seqs", _more_than(seqs))],
        "kv_space": [*_roomier(facts), replicas],
    }
    for cause, remedies in advice.items():
        if queued.get(cause, 0.0) > MANY_WAIT:
            waits = f"Requests wait {queued[cause]:.0%} of the time for {cause.replace('_', ' ')}"
            yield f"{waits}; if latency matters, {_advised(facts, *remedies)}."


def _load(facts: Facts) -> Iterator[str]:
    busy = facts.outcome.metrics["gpu_busy_fraction"]
    if busy is not None and busy < LOW_BUSY:
        yield (
            f"The GPU is busy {busy:.0%} of the time: the trace, not the engine, limits throughput; "
            "`servecast capacity` tells the highest rate, `--rate-scale` replays a higher one."
        )


def _limits(facts: Facts) -> Iterator[str]:
    for slo in facts.target.limits:
        value = facts.outcome.metrics.get(slo.judged_key)
        if value is None or excess(slo, facts.outcome.metrics):
            continue
        margin = 1 - value / slo.limit_ms
        if margin < NARROW_MARGIN:
            yield f"{slo.name} is {value:,.1f} ms, {margin:.0%} below its limit: closer than step times are known."
    if facts.robustness < 1 and facts.target.violation(facts.outcome.metrics) == 0:
        yield (
            f"All limits were kept in {facts.robustness:.0%} of the replays on other slices and with step times {facts.steps_off:.1%} off; "
            "measure before you rely on it."
        )


class Relaxation(NamedTuple):
    """A limit to be raised to `to_ms`, the others unchanged, and the candidate that then keeps all limits."""

    slo: Slo
    to_ms: float
    candidate: Candidate

    def __str__(self) -> str:
        return f"{self.slo.name} from {self.slo.limit_ms:g} ms to {self.to_ms:,.0f} ms"


def relaxations(candidates: Sequence[Candidate], target: Target) -> tuple[Relaxation, ...]:
    """For each limit the least value to which it alone has to be raised, so that some candidate keeps all limits.

    Limits are left out if raising them alone does not suffice, or if rejected requests make their percentile infinite.
    """
    return tuple(_each(candidates, target))


def _each(candidates: Sequence[Candidate], target: Target) -> Iterator[Relaxation]:
    for slo in target.limits:
        others = [other for other in target.limits if other is not slo]
        able = [
            candidate
            for candidate in candidates
            if candidate.metrics.get(slo.judged_key) is not None
            and all(excess(other, candidate.metrics) == 0 for other in others)
        ]
        if able:
            nearest = min(able, key=lambda candidate, slo=slo: candidate.metrics[slo.judged_key])  # type: ignore[misc]
            yield Relaxation(slo, nearest.metrics[slo.judged_key], nearest)
