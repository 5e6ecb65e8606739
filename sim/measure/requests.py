"""The requests of a replay, made from the workload of a measured run."""

from typing import NamedTuple

import numpy as np

from sim.engine.records import Ints
from sim.errors import RunsError
from sim.measure.runs import ClosedLoop, OpenLoop, Requests, TraceFile, Workload
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE
from sim.workload.readers import read_trace
from sim.workload.trace import Trace


class Asked(NamedTuple):
    """Requests, the stage of each, and how many may run at a time: None where they arrive on their own."""

    trace: Trace
    stage: Ints
    concurrency: int | None = None


def asked(workload: Workload, *, seed: int, block_size: int) -> Asked:
    """The requests of a workload; arrivals and lengths that are random are drawn with that seed.

    Lengths of closed loops are those that `vllm bench serve` draws (its random data set): from NumPy's older generator, all prompts before all answers,
    and its seed is 0 unless it is told another.

    Only whole KV blocks can be shared, so what prompts share is rounded down to blocks of `block_size` tokens.

    Raises RunsError for a trace in another block size, TraceError for one that cannot be read.
    """
    match workload:
        case OpenLoop():
            return _open_loop(workload, np.random.default_rng(seed), block_size)
        case ClosedLoop():
            return _closed_loop(workload, np.random.RandomState(seed))
        case TraceFile():
            return _trace_file(workload)
        case Requests():
            return _requests(workload)


def _open_loop(workload: OpenLoop, rng: np.random.Generator, block_size: int) -> Asked:
    """Poisson arrivals: a number of them drawn for each stage, spread evenly at random over it."""
    counts = [rng.poisson(stage.rate_rps * stage.duration_s) for stage in workload.stages]
    starts_s = np.cumsum([0.0, *(stage.duration_s for stage in workload.stages)])
    arrival_s = np.concatenate(
        [
            np.sort(start_s + stage.duration_s * rng.random(count))
            for start_s, stage, count in zip(starts_s, workload.stages, counts, strict=False)
        ]
    )
    prompts, num_requests = workload.prompts, len(arrival_s)
    if not num_requests:
        raise RunsError("its stages are so short that no request arrives.")
    distinct, groups = prompts.num_distinct, prompts.num_groups
    prompt_tokens = prompts.shared_tokens + prompts.unique_tokens
    shared = prompts.shared_tokens // block_size * block_size
    made_of = [((index % groups, shared), (groups + index, prompt_tokens - shared)) for index in range(distinct)]
    trace = Trace(
        request_id=tuple(map(str, range(num_requests))),
        arrival_s=arrival_s,
        prompt_tokens=np.full(num_requests, prompt_tokens),
        output_tokens=np.full(num_requests, workload.output_tokens),
        segments=[made_of[index % distinct][0 if shared else 1 :] for index in range(num_requests)],
    )
    return Asked(trace, np.repeat(np.arange(len(counts)), counts))


def _closed_loop(workload: ClosedLoop, rng: np.random.RandomState) -> Asked:
    count = workload.num_requests
    (prompt_low, prompt_high), (output_low, output_high) = (
        workload.prompt_tokens.uniform,
        workload.output_tokens.uniform,
    )
    trace = Trace(
        request_id=tuple(map(str, range(count))),
        arrival_s=np.zeros(count),
        prompt_tokens=rng.randint(prompt_low, prompt_high + 1, count),
        output_tokens=rng.randint(output_low, output_high + 1, count),
    )
    return Asked(trace, np.zeros(count, dtype=np.int64), workload.concurrency)


def _trace_file(workload: TraceFile) -> Asked:
    if workload.hash_block_size != DEFAULT_HASH_BLOCK_SIZE:
        raise RunsError(f"`hash_block_size` must be {DEFAULT_HASH_BLOCK_SIZE}, got {workload.hash_block_size}.")
    trace = read_trace(workload.file)
    return Asked(trace, np.zeros(len(trace), dtype=np.int64))


def _requests(workload: Requests) -> Asked:
    order = np.argsort(workload.start_s, kind="stable")
    start_s = np.array(workload.start_s)[order]
    trace = Trace(
        request_id=tuple(map(str, order)),
        arrival_s=np.zeros(len(order)) if workload.concurrency else start_s - start_s[0],
        prompt_tokens=np.array(workload.prompt_tokens)[order],
        output_tokens=np.array(workload.output_tokens)[order],
    )
    return Asked(trace, np.zeros(len(order), dtype=np.int64), workload.concurrency)
