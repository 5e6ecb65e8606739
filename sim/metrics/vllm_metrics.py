"""A run as the time series that vLLM's own `/metrics` would have shown: its names, its buckets, a label for each engine.

Mirrors vLLM's v1/metrics/loggers.py (0.33). Deliberate differences: requests end by length alone; the clock is the engine's, where vLLM's front
end adds its own milliseconds; a late gap between tokens, of a request that starved or was preempted, shows in the last sample alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import EngineRecords, Floats, Ints, RequestRecords
from sim.metrics.kv_blocks import Eviction
from sim.metrics.latencies import (
    end_to_end_s,
    is_completed,
    queue_time_s,
    time_per_output_token_s,
    time_to_first_token_s,
)
from sim.metrics.over_time import round_up, states_at

Kind = Literal["gauge", "counter", "histogram"]
MOST_SAMPLES, LEAST_S = 1000, 1.0  # of each series, and between two of them

TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
BLOCK_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)  # fmt: skip


class Observed(NamedTuple):
    """Values and when they were observed, each `counts` times."""

    at_s: Floats
    values: Floats
    counts: Floats

    @classmethod
    def once(cls, at_s: Floats, values: Floats) -> "Observed":
        """Those that are there."""
        known = np.isfinite(at_s) & np.isfinite(values)
        return cls(at_s[known], values[known], np.ones(int(known.sum())))


class Series(NamedTuple):
    """A metric of one engine at each time: a value or, of a histogram, how many were at most each bound (the last infinite) and their sum."""

    engine: int
    values: Floats
    sums: Floats | None = None


class Metric(NamedTuple):
    """`name` without the suffixes of samples; `labels` beyond the model's and the engine's."""

    name: str
    kind: Kind
    text: str
    series: Sequence[Series]
    bounds: Sequence[float] = ()
    labels: Mapping[str, str] = {}


def sample_times(run: ClusterRecords) -> Floats:
    """From the first arrival to past the last step, as far apart as a round number of seconds that makes at most MOST_SAMPLES."""
    every_s = max(LEAST_S, round_up(run.span_s / MOST_SAMPLES))
    return np.asarray(run.merged.requests.arrival_s[0] + every_s * np.arange(ceil(run.span_s / every_s) + 1.0))


def vllm_metrics(
    run: ClusterRecords,
    num_gpu_blocks: Sequence[int],
    max_model_len: Sequence[int],
    evictions: Sequence[Sequence[Eviction]] = (),
) -> Iterator[Metric]:
    """All metrics at `sample_times`; `num_gpu_blocks` and `max_model_len` by replica. `evictions` are those of sampled blocks, by replica."""
    times_s = sample_times(run)
    requests, replica = run.shares or (run.merged.requests, run.replica)
    engines = [
        _Engine(part, requests.only(np.flatnonzero(replica == number)), times_s)
        for number, part in enumerate(run.replicas)
    ]
    gauges = [
        states_at(engine.part.leaps.whole, times_s, blocks)
        for engine, blocks in zip(engines, num_gpu_blocks, strict=True)
    ]
    for place, (name, text) in enumerate(GAUGES.items()):
        series = [Series(number, np.asarray(found[place], dtype=np.float64)) for number, found in enumerate(gauges)]
        yield Metric(name, "gauge", text, series)
    for name, (text, events) in COUNTERS.items():
        labels = {"finished_reason": "length"} if name == "request_success" else {}
        yield Metric(
            name, "counter", text, [engine.counted(n, events) for n, engine in enumerate(engines)], labels=labels
        )
    lengths = tuple(_one_two_five(max(max_model_len)))
    for name, (text, bounds, observed) in HISTOGRAMS.items():
        edges = bounds or lengths
        yield Metric(
            name, "histogram", text, [engine.sorted_in(n, edges, observed) for n, engine in enumerate(engines)], edges
        )
    if evictions:
        yield from _blocks(evictions, times_s)


def _one_two_five(most: int) -> Iterator[float]:
    """1, 2, 5, 10, ... up to a length."""
    decade = 1
    while decade <= most:
        yield from (float(step * decade) for step in (1, 2, 5) if step * decade <= most)
        decade *= 10


class _Engine:
    """What one engine did, and when it is asked."""

    def __init__(self, part: EngineRecords, requests: RequestRecords, times_s: Floats) -> None:
        self.part = part
        self.requests = requests
        self._times_s = times_s

    def counted(self, number: int, events: "Events") -> Series:
        return Series(number, _sorted(events(self), (), self._times_s)[0][:, 0])

    def sorted_in(self, number: int, bounds: Sequence[float], events: "Events") -> Series:
        return Series(number, *_sorted(events(self), bounds, self._times_s))


Events = Callable[[_Engine], Observed]


def _sorted(observed: Observed, bounds: Sequence[float], times_s: Floats) -> tuple[Floats, Floats]:
    """How many of the values by each time were at most each bound, and their sums; without bounds, the sum of the counts."""
    order = np.argsort(observed.at_s, kind="stable")
    until = np.searchsorted(observed.at_s[order], times_s, side="right")
    values, counts = observed.values[order], observed.counts[order]

    def by_then(column: Floats) -> Floats:
        return np.concatenate(([0.0], np.cumsum(column)))[until]

    columns = [by_then(np.where(values <= bound, counts, 0.0)) for bound in bounds]
    return np.stack([*columns, by_then(counts)], axis=1), by_then(values * counts)


def _blocks(evictions: Sequence[Sequence[Eviction]], times_s: Floats) -> Iterator[Metric]:
    """What `--kv-cache-metrics` adds."""
    for name, (text, of) in BLOCKS.items():
        series = []
        for number, some in enumerate(evictions):
            pairs = [(one.time_s, value) for one in some for value in of(one)]
            at_s, values = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
            series.append(Series(number, *_sorted(Observed.once(at_s, values), BLOCK_S, times_s)))
        yield Metric(name, "histogram", text, series, BLOCK_S)


def _weighted(at_s: Floats, amounts: Floats) -> Observed:
    """Amounts that are counted at some times."""
    known = np.isfinite(at_s)
    return Observed(at_s[known], np.zeros(int(known.sum())), np.asarray(amounts, dtype=np.float64)[known])


def _gaps(engine: _Engine) -> Observed:
    leaps, gaps = engine.part.leaps, engine.part.gaps
    found = gaps.part(0, len(gaps))
    ends_s = leaps.step_ends_s(0, leaps.num_passes)
    late = np.full(len(found.times_s) - len(ends_s), leaps.last_end_s if len(leaps) else 0.0)
    counts = found.counts.astype(np.float64)
    return Observed(np.concatenate((ends_s, late))[counts > 0], found.times_s[counts > 0], counts[counts > 0])


def _step_tokens(engine: _Engine) -> Observed:
    """The tokens sampled in each step, and the whole prompts that were finished in it, as vLLM counts an iteration's."""
    steps, requests = engine.part.steps, engine.requests
    begun = np.isfinite(requests.first_token_s)
    step = np.searchsorted(steps.end_s, requests.first_token_s[begun]).clip(max=max(0, len(steps) - 1))
    tokens = steps.num_sampled.astype(np.float64)
    np.add.at(tokens, step, requests.prompt_tokens[begun])
    return Observed.once(steps.end_s, tokens)


def _of_requests(at: Callable[[RequestRecords], Floats], of: Callable[[RequestRecords], Floats | Ints]) -> Events:
    return lambda engine: Observed.once(at(engine.requests), np.asarray(of(engine.requests), dtype=np.float64))


def _first_s(requests: RequestRecords) -> Floats:
    return requests.first_token_s


def _finish_s(requests: RequestRecords) -> Floats:
    return requests.finish_s


GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
COUNTERS: Mapping[str, tuple[str, Events]] = {
    "prefix_cache_queries": (
        "Prefix cache queries, in number of tokens.",
        lambda e: _weighted(e.requests.first_scheduled_s, e.requests.prompt_tokens.astype(np.float64)),
    ),
    "prefix_cache_hits": (
        "Prefix cache hits, in number of tokens.",
        lambda e: _weighted(e.requests.first_scheduled_s, e.requests.num_cached_tokens.astype(np.float64)),
    ),
    "num_preemptions": (
        "Cumulative number of preemptions.",
        lambda e: _weighted(e.part.steps.start_s, e.part.steps.num_preempted.astype(np.float64)),
    ),
    "prompt_tokens": (
        "Number of prefill tokens processed.",
        lambda e: _weighted(e.requests.first_token_s, e.requests.prompt_tokens.astype(np.float64)),
    ),
    "prompt_tokens_cached": (
        "Number of cached prompt tokens.",
        lambda e: _weighted(e.requests.first_token_s, e.requests.num_cached_tokens.astype(np.float64)),
    ),
    "generation_tokens": (
        "Number of generation tokens processed.",
        lambda e: _weighted(e.part.steps.end_s, e.part.steps.num_sampled.astype(np.float64)),
    ),
    "request_success": (
        "Count of successfully processed requests.",
        lambda e: _weighted(e.requests.finish_s, is_completed(e.requests).astype(np.float64)),
    ),
}
HISTOGRAMS: Mapping[str, tuple[str, Sequence[float], Events]] = {
    "request_prompt_tokens": ("Prompt tokens of a request.", (), _of_requests(_finish_s, lambda r: r.prompt_tokens)),
    "request_generation_tokens": (
        "Tokens generated for a request.",
        (),
        _of_requests(_finish_s, lambda r: r.generated_tokens),
    ),
    "request_max_num_generation_tokens": (
        "The most tokens generated for an answer of a request.",
        (),
        _of_requests(_finish_s, lambda r: r.generated_tokens),
    ),
    "request_params_max_tokens": (
        "The max_tokens of a request.",
        (),
        _of_requests(_finish_s, lambda r: r.output_tokens),
    ),
    "iteration_tokens_total": ("Tokens of an engine step.", STEP_TOKENS, _step_tokens),
    "time_to_first_token_seconds": ("Time to first token.", TTFT_S, _of_requests(_first_s, time_to_first_token_s)),
    "inter_token_latency_seconds": ("Time between two tokens of a request.", TOKEN_S, _gaps),
    "request_time_per_output_token_seconds": (
        "Time per output token of a request.",
        TOKEN_S,
        _of_requests(_finish_s, time_per_output_token_s),
    ),
    "e2e_request_latency_seconds": (
        "End-to-end latency of a request.",
        REQUEST_S,
        _of_requests(_finish_s, end_to_end_s),
    ),
    "request_queue_time_seconds": (
        "Time of a request in the waiting phase.",
        REQUEST_S,
        _of_requests(_finish_s, queue_time_s),
    ),
    "request_inference_time_seconds": (
        "Time of a request in the running phase.",
        REQUEST_S,
        _of_requests(_finish_s, lambda r: r.finish_s - r.first_scheduled_s),
    ),
    "request_prefill_time_seconds": (
        "Time of a request in the prefill phase.",
        REQUEST_S,
        _of_requests(_finish_s, lambda r: r.first_token_s - r.first_scheduled_s),
    ),
    "request_decode_time_seconds": (
        "Time of a request in the decode phase.",
        REQUEST_S,
        _of_requests(_finish_s, lambda r: r.finish_s - r.first_token_s),
    ),
}
"""By name: a text, the bounds of the buckets (none: lengths of 1, 2 and 5 x 10^n up to max_model_len), and what is observed."""
BLOCKS: Mapping[str, tuple[str, Callable[[Eviction], Sequence[float]]]] = {
    "kv_block_lifetime_seconds": (
        "Time of a sampled KV block from allocation to eviction.",
        lambda one: (one.lifetime_s,),
    ),
    "kv_block_idle_before_evict_seconds": (
        "Time of a sampled KV block from its last use to eviction.",
        lambda one: (one.idle_s,),
    ),
    "kv_block_reuse_gap_seconds": ("Time between two finds of a sampled KV block.", lambda one: one.reuse_gaps_s),
}
