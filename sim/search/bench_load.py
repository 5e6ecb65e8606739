"""The `vllm bench serve` line that checks a forecast on a real server, the file that it reads, and the load that comes of it by vLLM version.

Read from vllm/benchmarks/{datasets,serve}.py of 27 released versions from 0.8.5 to 0.32.0. None of them sends priorities.

- From 0.28.0 `timed_trace` keeps arrival times and makes prompts of token ids from hash ids: exact. From 0.23.0 it exists, but
  sends text decoded from random tokens, whose lengths differ.
- From 0.9.1 `custom` reads prompts as text; from 0.14.0 each with its `output_tokens`, before, one length for all. Arrivals are drawn:
  gamma gaps from numpy's legacy generator, rescaled from 0.10.0 so that the last request goes at n / rate; before, the first goes at
  once and nothing is rescaled. Rows are shuffled; from 0.11.1 `--disable-shuffle` keeps their order, before, the seed is 0 always.
- From 0.10.2 to 0.13.0 the first prompt is sent once before the clock starts, unless `--ready-check-timeout-sec` is 0.
- Before 0.9.1 the bench knows random prompts only: that of a newer version can be run against such a server.
"""

import json
import random
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from sim.fleet import DeployedFleet
from sim.outputs import writing
from sim.search.evaluate import Scenario
from sim.specs.releases import parse_version
from sim.specs.slo import Slo
from sim.workload.arrivals import MIN_BURSTINESS, Gamma, arrival_times
from sim.workload.columns import Floats
from sim.workload.describe import describe
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE, blocks
from sim.workload.prompt_text import prompt_text
from sim.workload.trace import Segment, Trace
from sim.workload.writers import native_columns

MOST_PROMPTS = 20_000
MOST_TEXT_TOKENS = 4_000_000  # of all prompts where they are text: some 20 MB
MAX_BURSTINESS = 1000.0
SEED = 0

_TIMED_TRACE_OF_IDS = (0, 28, 0)
_OUTPUT_TOKENS = (0, 14, 0)
_DISABLE_SHUFFLE = (0, 11, 1)
_READY_CHECK = (0, 10, 2)
_RESCALED = (0, 10, 0)
_CUSTOM = (0, 9, 1)

Version = tuple[int, int, int]


@dataclass(frozen=True)
class BenchLoad:
    """A load for `vllm bench serve`: `trace` is what reaches the server, `flags` are the options that make the bench send it
    from the file that `write` writes, `notes` say where it differs from the trace that was asked for.
    """

    trace: Trace
    dataset_name: str
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    file_order: tuple[int, ...]

    def write(self, path: str | Path) -> None:
        """Write the dataset as JSON lines, whole or not at all; where arrival times are kept, it is a native trace as well.

        Raises ConfigError where it cannot be written.
        """
        rows = self._timed_rows() if self.dataset_name == "timed_trace" else self._text_rows()
        with writing(Path(path)) as part, part.open("w", encoding="utf-8", newline="") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _timed_rows(self) -> Iterator[dict[str, Any]]:
        columns = native_columns(self.trace)
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def _text_rows(self) -> Iterator[dict[str, Any]]:
        prompts, outputs = _prompts(self.trace), self.trace.output_tokens.tolist()
        return ({"prompt": prompt_text(prompts[row]), "output_tokens": outputs[row]} for row in self.file_order)


def bench_load(trace: Trace, vllm_version: str) -> BenchLoad:
    """The load nearest to `trace` that the bench of that version can send: the first MOST_PROMPTS requests at most, and
    with prompts as text no more than MOST_TEXT_TOKENS.
    """
    version = parse_version(vllm_version)
    is_timed = version >= _TIMED_TRACE_OF_IDS or version < _CUSTOM
    count = MOST_PROMPTS if is_timed else _num_texts(trace)
    sent = replace(
        trace.first(count), n=None, priority=None, lora_name=None, session_id=None, think_time_s=None, hold_s=None, stage=None,
        line=None, max_concurrency=None, acceptance_length=None, slo_class=None,
    )  # fmt: skip
    notes = tuple(_notes(trace, sent, version))
    return _timed(sent, notes) if is_timed else _custom(sent, version, notes)


def _num_texts(trace: Trace) -> int:
    fitting = int(np.searchsorted(np.cumsum(trace.prompt_tokens), MOST_TEXT_TOKENS, side="right"))
    return max(1, min(MOST_PROMPTS, fitting))


UNSENT = {
    "priority": "the bench sends no priorities",
    "lora_name": "the bench draws the adapter of each request from --lora-modules; this load asks for the base model",
    "session_id": "the bench knows no sessions: turns do not wait for the answer before them, and repeat no answers",
    "stage": "the bench does not wait for a stage to drain",
    "max_concurrency": "the bench has one limit of requests in flight for all (`--max-concurrency`)",
}
"""Columns of a trace that the bench has nothing for."""


def _notes(trace: Trace, sent: Trace, version: Version) -> Iterator[str]:
    if version < _CUSTOM:
        yield "this version's bench sends random prompts only: run that of vLLM 0.28.0 or newer against the server"
    if len(sent) < len(trace):
        yield f"the first {len(sent):,} of {len(trace):,} requests"
    if len(trace.more_answers):
        yield "the bench asks for one answer to each prompt"
    yield from (sentence for column, sentence in UNSENT.items() if getattr(trace, column) is not None)
    if _CUSTOM <= version < _OUTPUT_TOKENS:
        yield "this version's bench has one output length for all prompts, here their mean"
    if _CUSTOM <= version < _TIMED_TRACE_OF_IDS:
        yield "this version's bench draws arrivals at the trace's rate and burstiness, and sends text: compare `Total input tokens`"


def _timed(trace: Trace, notes: tuple[str, ...]) -> BenchLoad:
    size, ids = _chunks(trace)
    sent = replace(
        trace,
        arrival_s=trace.arrival_s - trace.arrival_s[0],
        segments=[blocks(row, tokens, size) for row, tokens in zip(ids, trace.prompt_tokens.tolist(), strict=True)],
    )
    flags = (
        "--timed-trace-chunk-hash-size", str(size),
        "--timed-trace-label-timestamp", "arrival_s",
        "--timed-trace-label-input-length", "prompt_tokens",
        "--timed-trace-label-output-length", "output_tokens",
        "--self-timed",
    )  # fmt: skip
    return BenchLoad(sent, "timed_trace", flags, notes, tuple(range(len(trace))))


def _chunks(trace: Trace) -> tuple[int, list[list[int]]]:
    """The size of the dataset's chunks, and the chunk ids of each prompt. A partial chunk is equal only to the same partial chunk."""
    prompts = _prompts(trace)
    size = _chunk_size(prompts, shared=trace.segments is not None)
    known: dict[tuple[int, int, int], int] = {}
    ids = [
        [
            known.setdefault((content, start, min(size, tokens - start)), len(known))
            for content, tokens in prompt
            for start in range(0, tokens, size)
        ]
        for prompt in prompts
    ]
    return size, ids


def _chunk_size(prompts: Sequence[tuple[Segment, ...]], *, shared: bool) -> int:
    inner = [tokens for prompt in prompts for _, tokens in prompt[:-1]]
    if inner:
        return gcd(*inner)
    return DEFAULT_HASH_BLOCK_SIZE if shared else max(tokens for prompt in prompts for _, tokens in prompt)


def _prompts(trace: Trace) -> Sequence[tuple[Segment, ...]]:
    if trace.segments is not None:
        return trace.segments
    return [((row, tokens),) for row, tokens in enumerate(trace.prompt_tokens.tolist())]


def _custom(trace: Trace, version: Version, notes: tuple[str, ...]) -> BenchLoad:
    facts = describe(trace)
    rate = "inf" if facts.mean_rate_rps is None else f"{facts.mean_rate_rps:.6g}"
    burstiness = f"{_burstiness(facts.gap_cv):.4g}"
    outputs = trace.output_tokens
    if version < _OUTPUT_TOKENS:
        outputs = np.full(len(trace), max(1, round(facts.output_tokens.mean)))
    sent = replace(
        trace,
        arrival_s=_arrivals(len(trace), float(rate), float(burstiness), version),
        output_tokens=outputs,
    )
    output_len = "-1" if version >= _OUTPUT_TOKENS else str(outputs[0])
    flags = ["--custom-output-len", output_len, "--request-rate", rate, "--burstiness", burstiness, "--seed", str(SEED)]
    flags += ["--ignore-eos", *_switches(version)]
    return BenchLoad(sent, "custom", tuple(flags), notes, _file_order(len(trace), version))


def _burstiness(gap_cv: float | None) -> float:
    """The shape of gamma-distributed gaps with that coefficient of variation."""
    return 1.0 if not gap_cv else min(MAX_BURSTINESS, max(MIN_BURSTINESS, 1 / gap_cv**2))


def _arrivals(count: int, rate: float, burstiness: float, version: Version) -> Floats:
    rng = np.random.RandomState(SEED)
    if version >= _RESCALED or rate == np.inf:
        return arrival_times(Gamma(burstiness), count, rate, rng)
    gaps_s = rng.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=count)
    return np.concatenate(([0.0], np.cumsum(gaps_s)[:-1]))


def _switches(version: Version) -> Iterator[str]:
    yield "--skip-chat-template" if version >= _DISABLE_SHUFFLE else "--custom-skip-chat-template"
    if version >= _DISABLE_SHUFFLE:
        yield "--disable-shuffle"
    if _READY_CHECK <= version < _OUTPUT_TOKENS:
        yield from ("--ready-check-timeout-sec", "0")


def _file_order(count: int, version: Version) -> tuple[int, ...]:
    """The rows of the trace in such an order that the bench's shuffle puts them back in order."""
    shuffled = list(range(count))
    if version < _DISABLE_SHUFFLE:
        random.Random(SEED).shuffle(shuffled)  # noqa: S311 - the bench's own shuffle
    order = np.empty(count, dtype=np.int64)
    order[shuffled] = np.arange(count)
    return tuple(order.tolist())


DATASET = "verify.jsonl"


@dataclass(frozen=True)
class Verification:
    """A line to run, the load that it sends, and the forecast for that load (keys of `simulate`); `notes` are those of the fleet."""

    command: str
    load: BenchLoad
    metrics: dict[str, Any]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset_name": self.load.dataset_name,
            "num_prompts": len(self.load.trace),
            "notes": [*self.load.notes, *self.notes],
            "metrics": self.metrics,
        }


def verification(scenario: Scenario, fleet: DeployedFleet, trace: Trace, dataset: str | Path = DATASET) -> Verification:
    """How to check a fleet on real servers, or one. The line reads its load from the file `dataset`, which is not written here."""
    load = bench_load(trace, fleet.first.engine.vllm_version)
    metrics = scenario.metrics(fleet, scenario.replay(load.trace, fleet))
    limit = scenario.clients.max_concurrency
    command = bench_command(scenario.model.name, load, dataset, scenario.target.slos, max_concurrency=limit)
    return Verification(command, load, metrics, tuple(_fleet_notes(fleet)))


def _fleet_notes(fleet: DeployedFleet) -> Iterator[str]:
    if fleet.asked:
        yield "send it to the router before the pools"
    if fleet.dynamics:
        yield f"{' and '.join(fleet.dynamics.given or ())} must be as in the fleet file there"


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
