"""Files of inference-perf: stages of Poisson or even load, or with so many requests in flight, and the prompts that these send.

Drawn by its rules (kubernetes-sigs/inference-perf: loadgen/load_timer.py at 0949afc8, loadgen/load_generator.py of 2026), not with its generator:
times are of the same distributions. A stage sends int(rate x duration) requests, or `num_requests`, which are due within a second and
wait for places: of `concurrency_level` each worker has an equal part, those with low numbers the rest. Prompts of no worker in particular
go to whoever has a place. After a stage has drained, `interval` and a second pass; that it looks only once a second whether it has, is left out.
"""

import io
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, create_model

from sim.errors import TraceError, listed
from sim.inputs import parse_yaml
from sim.specs.strict_yaml import NotNegative, Strict, checked
from sim.workload.columns import Floats, Ints
from sim.workload.inference_perf_prompts import KINDS, Data, Tokens, drawn_prompts, num_slots
from sim.workload.names import RowNames
from sim.workload.source import yaml_text
from sim.workload.trace import Trace

FORMAT = "inference-perf"
LEAD_S = 1.0  # between the interval and the first request's clock
BURST_S = 1.0  # in which requests of a concurrent stage come due
MAX_REQUESTS = 10_000_000  # as of generated traces
SECTION = re.compile(rb"^(load|data):\s*(#.*)?$", re.MULTILINE)


class RateStage(Strict):
    rate: Annotated[float, Field(gt=0, le=1e6)]
    duration: Annotated[float, Field(gt=0, le=1e6)]
    num_requests: None = None  # of concurrent loads
    concurrency_level: None = None

    @property
    def count(self) -> int:
        return int(self.rate * self.duration)


class ConcurrentStage(Strict):
    num_requests: Tokens
    concurrency_level: Tokens
    rate: None = None  # of the others
    duration: None = None

    @property
    def count(self) -> int:
        return self.num_requests


class LoadSection(Strict):
    """What all loads may say; timeouts are not simulated."""

    interval: NotNegative = 1.0
    worker_max_concurrency: Any = None
    worker_max_tcp_connections: Any = None
    request_timeout: Any = None
    base_seed: Any = None


class RateLoad(LoadSection):
    """What its workers may do at a time is not simulated."""

    type: Literal["poisson", "constant"]
    stages: Annotated[list[RateStage], Field(min_length=1)]
    num_workers: Any = None


class ConcurrentLoad(LoadSection):
    type: Literal["concurrent"]
    stages: Annotated[list[ConcurrentStage], Field(min_length=1)]
    num_workers: Tokens | None = None


Load = RateLoad | ConcurrentLoad
LOADS: dict[str, type[Load]] = {"poisson": RateLoad, "constant": RateLoad, "concurrent": ConcurrentLoad}


def is_workload(stream: io.BufferedReader) -> bool:
    """Whether a stream begins with sections of such a file."""
    return SECTION.search(stream.peek(1)) is not None


def read_workload(stream: io.BufferedReader, name: str, seed: int) -> Trace:
    """Its requests; equal seeds give equal ones. Raises TraceError, naming the key, for what is not read."""
    load, data = _checked(parse_yaml(yaml_text(stream, name), TraceError, name), name)
    prompting, arriving = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(2))
    counts = [stage.count for stage in load.stages]
    prompts = drawn_prompts(data, counts, prompting)
    notes = [f"{name} is a load of inference-perf: its times and prompts are drawn with seed {seed}."]
    if isinstance(load, ConcurrentLoad) and prompts.slot is not None and load.num_workers is None:
        notes.append(
            f"{name} does not say `num_workers`, of which inference-perf has as many as the machine has CPUs; here it is one."
        )
    workers = _workers(load, counts, prompts.slot) if isinstance(load, ConcurrentLoad) else NOBODY
    return Trace(
        request_id=RowNames(range(sum(counts))),
        arrival_s=_arrivals(load, arriving),
        prompt_tokens=prompts.prompt_tokens,
        output_tokens=prompts.output_tokens,
        session_id=prompts.session_id,
        hold_s=prompts.hold_s,
        stage=np.repeat(np.arange(len(counts)), counts),
        segments=prompts.segments,
        source=name,
        format=FORMAT,
        notes=tuple(notes),
        line=workers.line,
        max_concurrency=workers.limit,
    )


def _checked(values: Any, name: str) -> tuple[Load, Data]:
    """The sections that make requests; those on the server, the API, reports and storage say nothing here."""
    sections = {key: values[key] for key in ("load", "data") if key in values}
    kinds = {section: _kind(sections, section, kinds, name) for section, kinds in (("load", LOADS), ("data", KINDS))}
    fields: dict[str, Any] = {section: (kind, ...) for section, kind in kinds.items()}
    found: Any = checked(sections, create_model("File", __base__=Strict, **fields), Path(name), TraceError)
    load, data = found.load, found.data
    counts = [stage.count for stage in load.stages]
    if min(counts) < 1 or sum(counts) > MAX_REQUESTS or num_slots(data) > MAX_REQUESTS:
        raise TraceError(
            f"{name}: `load.stages` must each have a request at least, rate x duration, and all together, as the prompts, "
            f"{MAX_REQUESTS:,} at most; got {min(counts):,} in the smallest, {sum(counts):,} in all."
        )
    return load, data


def _kind(sections: dict[str, Any], section: str, kinds: dict[str, Any], name: str) -> type[Strict]:
    """Raises TraceError for loads and data that are another program's work to read."""
    kind = sections[section].get("type") if isinstance(sections.get(section), dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        got = "nothing" if kind is None else str(kind)[:40]
        raise TraceError(
            f"{name}: of inference-perf, a load of type {listed(list(LOADS), 'or')} is read with data of type {listed(list(KINDS), 'or')}, "
            f"got {got} in `{section}.type`; write such a load as rows of a trace."
        )
    found: type[Strict] = kinds[kind]
    return found


def _arrivals(load: Load, rng: np.random.Generator) -> Floats:
    """Stage after stage, as if none had anything to drain."""
    begin_s, arrivals = 0.0, []
    for stage in load.stages:
        if isinstance(stage, ConcurrentStage):
            after_s = _spread(stage.count, BURST_S, rng)
        elif load.type == "poisson":
            after_s = _poisson(stage, rng)
        else:
            after_s = _spread(stage.count, stage.duration, rng)
        arrivals.append(begin_s + after_s)
        begin_s = float(arrivals[-1][-1]) + load.interval + LEAD_S
    return np.concatenate(arrivals)


def _poisson(stage: RateStage, rng: np.random.Generator) -> Floats:
    """Second after second with a number drawn for each, until the stage has all its requests."""
    seconds: list[Floats] = []
    num_drawn = 0
    while num_drawn < stage.count:
        seconds.append(len(seconds) + _spread(int(rng.poisson(stage.rate)), 1.0, rng))
        num_drawn += len(seconds[-1])
    return np.fromiter(chain.from_iterable(seconds), np.float64, num_drawn)[: stage.count]


def _spread(count: int, duration_s: float, rng: np.random.Generator) -> Floats:
    """Exponential gaps that fill the time."""
    gaps = rng.exponential(size=count)
    return np.cumsum(gaps) * (duration_s / gaps.sum()) if count else gaps


class Workers(NamedTuple):
    """Who sends each request, and how many that one has in flight."""

    line: Ints | None = None
    limit: Ints | None = None


NOBODY = Workers()


def _workers(load: ConcurrentLoad, counts: Sequence[int], slot: Ints | None) -> Workers:
    level = np.repeat([stage.concurrency_level for stage in load.stages], counts)
    if slot is None:
        return Workers(limit=level)
    number = load.num_workers or 1
    worker = slot % np.minimum(number, level)
    return Workers(worker, level // number + (worker < level % number))
