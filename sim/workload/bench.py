"""The JSON of `vllm bench serve --save-result --save-detailed`: what was sent, and when.

Per request it has `input_lens`, `output_lens` (0 for one that failed), `ttfts` and `itls` in seconds, and from vLLM 0.21 on
`start_times` by the client's clock, taken when `--max-concurrency` let the request go. It does not say what prompts share.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from sim.errors import ConfigError, TraceError
from sim.inputs import is_sane
from sim.workload.arrivals import POISSON, Gamma, check_rate
from sim.workload.columns import MAX_SECONDS, MAX_TOKENS, Floats, Ints, show
from sim.workload.table import Sheet
from sim.workload.trace import Trace

FORMAT = "vllm bench"
SEED = 0  # for arrivals that were not recorded; that is the default of vllm bench serve too


class Benchmark(NamedTuple):
    """The requests of a benchmark that got an answer, in order of sending. `rows` are their places in the file's lists;
    `concurrency` is set if each client sent its next request as soon as the last had ended.
    `times` says how their times are known, `notes` what else was left open.
    """

    rows: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    concurrency: int | None
    times: str
    notes: tuple[str, ...]


def read_bench_sheet(sheet: Sheet, limit: int | None) -> Trace:
    """The requests of a benchmark as a trace. Raises TraceError for a file of several, and as `read_benchmark`."""
    rows = [
        dict(zip(chunk.cells, row, strict=True))
        for chunk in sheet.chunks
        for row in zip(*chunk.cells.values(), strict=True)
    ]
    if len(rows) > 1:
        raise TraceError(f"{sheet.name}: holds several benchmarks (--append-result), a trace is one; keep one line.")
    found = read_benchmark(rows[0], sheet.name)
    if found.concurrency and not _has_times(rows[0]):
        raise TraceError(
            f"{sheet.name}: `start_times` is absent, and --max-concurrency {found.concurrency} made requests wait for "
            "others, so that their times are unknown; run the benchmark with vLLM 0.21 or newer."
        )
    trace = Trace(
        request_id=tuple(f"r{row}" for row in found.rows.tolist()),
        arrival_s=found.arrival_s,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        source=sheet.name,
        format=FORMAT,
        notes=(f"{sheet.name} is a benchmark: {'; '.join((found.times, *found.notes))}.",),
    )
    return trace if limit is None else trace.first(limit)


def read_benchmark(values: Mapping[str, Any], name: str) -> Benchmark:
    """What a benchmark sent. Raises TraceError, naming the file and the key, where details are absent or wrong."""
    prompts, outputs = (_lengths(values, key, least, name) for key, least in (("input_lens", 1), ("output_lens", 0)))
    if len(prompts) != len(outputs):
        _fault(name, "output_lens", f"as long as `input_lens`, {len(prompts):,}", f"{len(outputs):,}")
    sent_s, times = _sent(values, len(prompts), name)
    done = np.flatnonzero(outputs)
    if not len(done):
        raise TraceError(f"{name}: `output_lens` must have a request with output, got none.")
    rows = done[np.argsort(sent_s[done], kind="stable")]
    notes = ["what prompts share is not recorded and taken as nothing"]
    if num_failed := len(prompts) - len(done):
        notes.append(f"{num_failed:,} of {len(prompts):,} requests failed and are left out")
    concurrency = _concurrency(values, name) if math.isinf(_rate(values, name)) else None
    return Benchmark(
        rows, sent_s[rows] - sent_s[rows[0]], prompts[rows], outputs[rows], concurrency, times, tuple(notes)
    )


def _sent(values: Mapping[str, Any], count: int, name: str) -> tuple[Floats, str]:
    """When each request was sent, and how that is known."""
    rate, concurrency = _rate(values, name), _concurrency(values, name)
    if _has_times(values):
        under = f" under --max-concurrency {concurrency}" if concurrency else ""
        return _times(values, count, name), f"requests come when it sent them{under}"
    if math.isinf(rate):
        return np.zeros(count), f"requests come {f'to {concurrency} clients' if concurrency else 'all at once'}"
    if concurrency or values.get("ramp_up_strategy"):
        raise TraceError(
            f"{name}: `start_times` is absent, and a rate with --max-concurrency or --ramp-up-strategy does not say when "
            "requests came; run the benchmark with vLLM 0.21 or newer."
        )
    burstiness = values.get("burstiness")
    try:
        check_rate(count, rate)
        arrivals = Gamma(float(burstiness)) if isinstance(burstiness, int | float) else POISSON
    except ConfigError as error:
        raise TraceError(f"{name}: {error}") from None
    drawn = arrivals.times(count, rate, np.random.default_rng(SEED))
    return drawn, f"it has no `start_times` (vLLM before 0.21), arrivals are drawn as it did, {rate:g} requests/s"


def _has_times(values: Mapping[str, Any]) -> bool:
    """Whether start times were recorded: a client that does not record them writes zeros."""
    times = values.get("start_times")
    return isinstance(times, list) and any(times)


def _times(values: Mapping[str, Any], count: int, name: str) -> Floats:
    times = values["start_times"]
    if len(times) != count:
        _fault(name, "start_times", f"as long as `input_lens`, {count:,}", f"{len(times):,}")
    for time in times:
        if type(time) not in {int, float} or not abs(time) <= MAX_SECONDS:
            _fault(name, "start_times", "a finite number of seconds in each place", show(time))
    return np.array(times, dtype=np.float64)


def _lengths(values: Mapping[str, Any], key: str, least: int, name: str) -> Ints:
    lengths = values.get(key)
    if not isinstance(lengths, list) or not lengths:
        raise TraceError(f"{name}: `{key}` is absent; run vllm bench serve with --save-detailed.")
    for length in lengths:
        if type(length) is not int or not least <= length <= MAX_TOKENS:
            _fault(name, key, f"an integer from {least} to {MAX_TOKENS:,} in each place", show(length))
    return np.array(lengths, dtype=np.int64)


def _rate(values: Mapping[str, Any], name: str) -> float:
    """Requests a second; infinite where the file does not say."""
    rate = values.get("request_rate", "inf")
    if rate == "inf":
        return math.inf
    if type(rate) not in {int, float} or not (rate > 0 and is_sane(rate)):
        _fault(name, "request_rate", "a number above 0 or inf", show(rate))
    return float(rate)


def _concurrency(values: Mapping[str, Any], name: str) -> int | None:
    most = values.get("max_concurrency")
    if most is not None and (type(most) is not int or not 1 <= most <= MAX_TOKENS):
        _fault(name, "max_concurrency", f"an integer from 1 to {MAX_TOKENS:,} or null", show(most))
    return most


def _fault(name: str, key: str, rule: str, got: str) -> NoReturn:
    raise TraceError(f"{name}: `{key}` must be {rule}, got {got}; is it the file that vllm bench serve wrote?")
