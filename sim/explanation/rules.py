"""What might help, by what limits a run: a rule a line. Whether it does is found by trying (`trials`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sim.api import Result
from sim.metrics.bottlenecks import WORTH_SAYING
from sim.specs.engine import EngineConfig, ResolvedEngine

MUCH = 0.25  # of the busy time
UNEVEN = 3.0  # times the median gap between tokens: prompts hold decodes up
HIGHEST_UTILIZATION = 0.95
ROUTERS = ("least_loaded", "llm_d", "sglang_cache_aware")


class Change(NamedTuple):
    """What it is called, and the arguments of `sim.simulate` that it sets; `gpus` is how many times the GPUs it takes."""

    name: str
    arguments: Mapping[str, Any]
    gpus: int = 1


class Situation(NamedTuple):
    """A run, and what of it rules look at."""

    result: Result

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.result.summary

    @property
    def given(self) -> EngineConfig:
        """The engine arguments, of which changes set one."""
        engine: EngineConfig = self.result.asked["engine"]
        return engine

    @property
    def engine(self) -> ResolvedEngine:
        """What they come to; of unlike pools that of the first."""
        return self.result.deployment.engine

    def waits_for(self, *queues: str) -> bool:
        """Layer-wise offload serves one request at a time whatever is given."""
        return self.result.asked["layerwise"] is None and any(
            self.summary["limits"]["queued"][queue] >= WORTH_SAYING for queue in queues
        )

    def is_busy_with(self, *resources: str) -> bool:
        return any(self.summary["limits"]["busy"].get(resource, 0.0) >= MUCH for resource in resources)

    def is_held_up(self) -> bool:
        """Whether some gaps between tokens are much longer than most."""
        median, p99 = self.summary["median_itl_ms"], self.summary["p99_itl_ms"]
        return median is not None and p99 > UNEVEN * median

    def has_a_choice(self) -> bool:
        """Whether a router has several to choose from."""
        return self.result.fleet.most_addresses > 1

    def is_of_equals(self) -> bool:
        """Whether GPUs can be added: a fleet file says itself what there is."""
        return self.result.fleet.asked is None and self.result.asked["layerwise"] is None

    def loses_graphs(self) -> bool:
        return any((cliff["cost"] or 0.0) >= WORTH_SAYING for cliff in self.summary["limits"]["graph_cliffs"])

    def shares_prefixes(self) -> bool:
        trace = self.result.trace
        return trace.segments is not None or trace.session_id is not None

    def has_fp8(self) -> bool:
        return "fp8" in self.result.deployment.gpu.peak_flops

    def with_engine(self, name: str, value: Any) -> Change:
        return Change(f"{name}={value}", {"engine": replace(self.given, **{name: value})})


class Rule(NamedTuple):
    """When something is worth a try, and what."""

    when: Callable[[Situation], bool]
    changes: Callable[[Situation], Iterator[Change]]


def _more_seats(at: Situation) -> Iterator[Change]:
    for times in (2, 4):
        yield at.with_engine("max_num_seqs", at.engine.max_num_seqs * times)


def _fewer_seats(at: Situation) -> Iterator[Change]:
    yield at.with_engine("max_num_seqs", max(1, at.engine.max_num_seqs // 2))


def _larger_steps(at: Situation) -> Iterator[Change]:
    for times in (2, 4):
        yield at.with_engine("max_num_batched_tokens", at.engine.max_num_batched_tokens * times)


def _smaller_steps(at: Situation) -> Iterator[Change]:
    least = max(at.engine.max_num_seqs, 256)
    for times in (4, 16):
        if (fewer := at.engine.max_num_batched_tokens // times) >= least:
            yield at.with_engine("max_num_batched_tokens", fewer)


def _more_kv(at: Situation) -> Iterator[Change]:
    if at.engine.gpu_memory_utilization < HIGHEST_UTILIZATION:
        yield at.with_engine("gpu_memory_utilization", HIGHEST_UTILIZATION)


def _smaller_kv(at: Situation) -> Iterator[Change]:
    if at.given.kv_cache_dtype == "auto" and at.has_fp8():
        yield at.with_engine("kv_cache_dtype", "fp8")


def _smaller_weights(at: Situation) -> Iterator[Change]:
    if at.given.quantization is None and at.result.deployment.model.quantization is None and at.has_fp8():
        yield at.with_engine("quantization", "fp8")


def _cached_prefixes(at: Situation) -> Iterator[Change]:
    if not at.engine.enable_prefix_caching and at.shares_prefixes():
        yield at.with_engine("enable_prefix_caching", True)


def _larger_graphs(at: Situation) -> Iterator[Change]:
    if at.engine.enforce_eager:
        yield at.with_engine("enforce_eager", False)
    else:
        largest = max(cliff["largest_batch"] for cliff in at.summary["limits"]["graph_cliffs"])
        yield at.with_engine("max_cudagraph_capture_size", min(largest, at.engine.max_num_seqs))


def _asynchronous(at: Situation) -> Iterator[Change]:
    if not at.engine.async_scheduling:
        yield at.with_engine("async_scheduling", True)


def _more_gpus(at: Situation) -> Iterator[Change]:
    yield at.with_engine("tensor_parallel_size", 2 * at.engine.tensor_parallel_size)._replace(gpus=2)
    count = 2 * at.result.fleet.num_servers
    yield Change(f"replicas={count}", {"replicas": count}, gpus=2)


def _other_routers(at: Situation) -> Iterator[Change]:
    for router in ROUTERS:
        if router != at.result.fleet.router:
            yield Change(f"router={router}", {"router": router})


RULES = (
    Rule(lambda at: at.waits_for("max_num_seqs"), _more_seats),
    Rule(lambda at: at.waits_for("token_budget"), _larger_steps),
    Rule(lambda at: at.is_held_up(), _smaller_steps),
    Rule(lambda at: at.waits_for("kv_space"), _more_kv),
    Rule(lambda at: at.waits_for("kv_space") or at.is_busy_with("hbm_bandwidth"), _smaller_kv),
    Rule(lambda at: at.waits_for("kv_space") or at.is_busy_with("hbm_bandwidth", "compute"), _smaller_weights),
    Rule(lambda at: at.summary["num_preemptions"] > 0, _fewer_seats),
    Rule(lambda _: True, _cached_prefixes),
    Rule(lambda at: at.loses_graphs(), _larger_graphs),
    Rule(lambda at: at.is_busy_with("host"), _asynchronous),
    Rule(lambda at: at.is_of_equals(), _more_gpus),
    Rule(lambda at: at.has_a_choice() and at.is_of_equals(), _other_routers),
)


def worth_a_try(result: Result) -> list[Change]:
    """What the rules name, in their order."""
    at = Situation(result)
    return [change for rule in RULES if rule.when(at) for change in rule.changes(at)]
