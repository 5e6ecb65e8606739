"""`vllm bench serve --save-result --save-detailed` JSON as measured runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import RunsError
from sim.inputs import read_json
from sim.measure.runs import Measured, Requests, Run, read_runs

DETAILS = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}


class Server(NamedTuple):
    """What a benchmark's JSON does not say of its server; `engine` under vLLM's argument names."""

    model: str
    gpu: str
    engine: Mapping[str, Any]
    vllm_version: str | None = None


def read_measured(paths: Sequence[Path], server: Server | None = None) -> tuple[Run, ...]:
    """All runs of files in Servecast's format or of vLLM's benchmark, the latter against `server`.

    Raises RunsError with file, field and rule.
    """
    return tuple(run for path in paths for run in _read(path, server))


def _read(path: Path, server: Server | None) -> tuple[Run, ...]:
    values = read_json(path, RunsError)
    if not isinstance(values, dict) or "num_prompts" not in values:
        return read_runs(path)
    if server is None:
        raise RunsError(f"{path}: is vLLM's benchmark, which does not name its server; give --model and --gpu.")
    return (_bench_run(path, values, server),)


def _bench_run(path: Path, values: Mapping[str, Any], server: Server) -> Run:
    if missing := [name for name in DETAILS if name not in values]:
        raise RunsError(f"{path}: `{missing[0]}` is absent; run vllm bench serve with --save-detailed.")
    done = [row for row, tokens in enumerate(values["output_lens"]) if tokens > 0]
    if not done:
        raise RunsError(f"{path}: `output_lens` must have a request with output, got none.")
    starts_s, prompts, outputs = (
        tuple(values[name][row] for row in done) for name in ("start_times", "input_lens", "output_lens")
    )
    return Run(
        id=path.stem,
        source=str(path),
        engine_version=server.vllm_version or "unknown",
        model=server.model,
        gpu=server.gpu,
        engine=server.engine,
        workload=Requests(
            kind="requests",
            start_s=starts_s,
            prompt_tokens=prompts,
            output_tokens=outputs,
            concurrency=values.get("max_concurrency"),
        ),
        clock="client",
        measured=(_measured(values),),
    )


def _measured(values: Mapping[str, Any]) -> Measured:
    def latencies(name: str) -> dict[str, float]:
        found = {ours: values.get(f"{theirs}_{name}_ms") for theirs, ours in STATISTICS.items()}
        return {statistic: value for statistic, value in found.items() if value is not None}

    return Measured(
        stage=None,
        ttft_ms=latencies("ttft"),
        tpot_ms=latencies("tpot"),
        e2el_ms=latencies("e2el"),
        output_throughput=values.get("output_throughput"),
        makespan_s=values.get("duration"),
    )
