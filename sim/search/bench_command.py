"""The `vllm bench serve` line that checks a forecast on a real server, and the forecast for exactly the load it sends."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.metrics.slo import Slo
from sim.search.bench_load import BenchLoad, bench_load
from sim.search.evaluate import Scenario
from sim.search.space import Params
from sim.workload.trace import Trace

DATASET = "verify.jsonl"


@dataclass(frozen=True)
class Verification:
    """A line to run, the load that it sends and what is forecast for it (keys of `simulate`)."""

    command: str
    load: BenchLoad
    metrics: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset_name": self.load.dataset_name,
            "num_prompts": len(self.load.trace),
            "notes": list(self.load.notes),
            "metrics": self.metrics,
        }


def verification(scenario: Scenario, params: Params, trace: Trace, dataset: str | Path = DATASET) -> Verification:
    """How to check a candidate on `trace`; the line reads the load from the file `dataset`, which is not written here."""
    deployed = scenario.deploy(params)
    load = bench_load(trace, deployed.engine.vllm_version)
    metrics = scenario.metrics(params, deployed, scenario.replay(load.trace, params, deployed))
    limit = scenario.clients.max_concurrency
    command = bench_command(scenario.model.name, load, dataset, scenario.target.slos, max_concurrency=limit)
    return Verification(command, load, metrics)


def bench_command(
    model: str, load: BenchLoad, dataset: str | Path, slos: Iterable[Slo] = (), *, max_concurrency: int | None = None
) -> str:
    """The line that sends the load from its file and measures what is limited."""
    words = ["vllm", "bench", "serve", "--model", model]
    words += [
        "--dataset-name",
        load.dataset_name,
        "--dataset-path",
        str(dataset),
        "--num-prompts",
        str(len(load.trace)),
    ]
    if max_concurrency is not None:
        words += ["--max-concurrency", str(max_concurrency)]
    return shlex.join([*words, *load.flags, *_measured(list(slos)), "--save-result"])


def _measured(slos: list[Slo]) -> Iterator[str]:
    percentiles = sorted({50.0, 99.0, *(slo.percentile for slo in slos)})
    yield from ("--percentile-metrics", "ttft,tpot,itl,e2el")
    yield from ("--metric-percentiles", ",".join(f"{percentile:g}" for percentile in percentiles))
    goodput = [f"{slo.latency}:{slo.limit_ms:g}" for slo in slos if slo.latency != "itl"]
    if goodput:
        yield from ("--goodput", *goodput)
