"""`vllm bench serve --save-result --save-detailed` JSON as measured runs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.errors import RunsError, SimError, TraceError
from sim.inputs import MAX_JSON_BYTES, is_sane, parse_json, read_text
from sim.measure.runs import Measured, Requests, Run, read_runs
from sim.metrics.statistics import statistics
from sim.specs.models import load_model
from sim.units import MS
from sim.workload.bench import Benchmark, read_benchmark
from sim.workload.columns import Floats, show
from sim.workload.source import REPORT_KEYS

DETAILS = ("ttfts", "itls")
STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}


class Server(NamedTuple):
    """Facts about the server that a benchmark's JSON lacks, None if not given; `engine` under vLLM's argument names."""

    model: str | None
    gpu: str | None
    engine: Mapping[str, Any]
    vllm_version: str | None = None


def read_measured(paths: Sequence[Path], server: Server) -> tuple[Run, ...]:
    """All runs of files in Servecast's format or of vLLM's benchmark, the latter against `server`. Runs of one name are
    numbered.

    Raises RunsError with file, field and rule.
    """
    times: Counter[str] = Counter()
    found: list[Run] = []
    for run in (run for path in paths for run in _read(path, server)):
        times[run.id] += 1
        found.append(run.model_copy(update={"id": f"{run.id}-{times[run.id]}"}) if times[run.id] > 1 else run)
    return tuple(found)


def _read(path: Path, server: Server) -> tuple[Run, ...]:
    text = read_text(path, RunsError, most_bytes=MAX_JSON_BYTES, kind="JSON")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(
        line.startswith("{") and line.rstrip().endswith("}") for line in lines
    ):  # several: --append-result
        reports = [parse_json(line, RunsError, str(path)) for line in lines]
    else:
        reports = [parse_json(text, RunsError, str(path))]
    if all(isinstance(values, dict) and not set(REPORT_KEYS).isdisjoint(values) for values in reports):
        return tuple(_bench_run(path, values, server) for values in reports)
    return read_runs(path)


def _bench_run(path: Path, values: Mapping[str, Any], server: Server) -> Run:
    model = _model(path, values, server)
    try:
        sent = read_benchmark(values, str(path))
        measured = _measured(path, values, sent)
    except TraceError as error:
        raise RunsError(str(error)) from None
    notes = [
        f"{sent.concurrency} clients send a request each when their last has ended" if sent.concurrency else sent.times
    ]
    notes += sent.notes if server.engine else (*sent.notes, "its server is taken to run with vLLM's defaults")
    return Run(
        id=path.stem,
        source=str(path),
        engine_version=server.vllm_version or "unknown",
        model=model,
        gpu=server.gpu or "",
        engine=server.engine,
        workload=Requests(
            kind="requests",
            start_s=tuple(sent.arrival_s.tolist()),
            prompt_tokens=tuple(sent.prompt_tokens.tolist()),
            output_tokens=tuple(sent.output_tokens.tolist()),
            concurrency=sent.concurrency,
        ),
        clock="client",
        measured=(measured,),
        note=f"{path} is a benchmark: {'; '.join(notes)}.",
    )


def _model(path: Path, values: Mapping[str, Any], server: Server) -> str:
    """The model given, else the benchmark's `model_id` if that is a known model."""
    name = server.model or values.get("model_id")
    lacking = None if server.gpu else "name its GPU"
    if server.model is None:
        try:
            load_model(str(name))
        except SimError:
            lacking = f"name its server's model ({name!r} is not known here){' and GPU' if lacking else ''}"
    if lacking:
        raise RunsError(
            f"{path}: is vLLM's benchmark, which does not {lacking}; give --gpu and the server's line behind `--` "
            "(vllm serve MODEL ...), or --gpu, --model and the flags that the server had."
        )
    return str(name)


def _measured(path: Path, values: Mapping[str, Any], sent: Benchmark) -> Measured:
    """The benchmark's own figures; those that it does not report are computed from its details."""
    detailed = _latencies_s(path, values, sent)

    def latencies_ms(name: str) -> dict[str, float]:
        again = statistics(detailed[name])._asdict()
        own = {theirs: values.get(f"{theirs}_{name}_ms") for theirs in STATISTICS}
        found = {
            theirs: value if _is_number(value) else again[theirs] and again[theirs] / MS
            for theirs, value in own.items()
        }
        return {STATISTICS[theirs]: value for theirs, value in found.items() if value is not None}

    return Measured(
        stage=None,
        ttft_ms=latencies_ms("ttft"),
        tpot_ms=latencies_ms("tpot"),
        e2el_ms=latencies_ms("e2el"),
        output_throughput=_positive(path, values, "output_throughput"),
        makespan_s=_positive(path, values, "duration"),
    )


def _latencies_s(path: Path, values: Mapping[str, Any], sent: Benchmark) -> dict[str, Floats]:
    """Latencies of each request that was answered, as the benchmark computes them."""
    for key in DETAILS:
        if not isinstance(values.get(key), list) or len(values[key]) != len(values["input_lens"]):
            raise RunsError(f"{path}: `{key}` must have an entry a request; run vllm bench serve with --save-detailed.")
    rows = sent.rows.tolist()
    try:
        ttft_s = np.array([math.fsum([values["ttfts"][row]]) for row in rows])
        e2el_s = ttft_s + np.array([math.fsum(values["itls"][row]) for row in rows])
        if not np.isfinite(e2el_s).all():
            raise ValueError  # noqa: TRY301 - told with the rest
    except (TypeError, ValueError, OverflowError):
        raise RunsError(
            f"{path}: `ttfts` and `itls` must hold seconds; is it the file that vllm bench serve wrote?"
        ) from None
    further = sent.output_tokens - 1
    return {"ttft": ttft_s, "e2el": e2el_s, "tpot": ((e2el_s - ttft_s)[further > 0] / further[further > 0])}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_sane(value)


def _positive(path: Path, values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    if value is not None and not (_is_number(value) and value > 0):
        raise RunsError(
            f"{path}: `{key}` must be a number above 0 that a server can reach, got {show(value)}; is it the file that vllm bench serve wrote?"
        )
    return value
