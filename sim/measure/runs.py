"""Measured runs: the file that `servecast validate` and `servecast calibrate` read, strictly.

A run is a deployment, its workload, and the figures that a client or the engine measured. `docs/accuracy.md` describes the
format; these classes are its schema.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sim.cluster.front_end import Clock
from sim.errors import RunsError
from sim.specs.sampling import Sampling
from sim.specs.strict_yaml import Count, Positive, Strict, read_json
from sim.steptime.expert_routing import ExpertRouting

UNKNOWN_DISTINCT_PROMPTS = 45  # most of the published runs have it


class Uniform(Strict):
    """Token counts drawn evenly between two bounds, both included."""

    uniform: tuple[Count, Count]

    @model_validator(mode="after")
    def _ascends(self) -> "Uniform":
        if self.uniform[0] > self.uniform[1]:
            raise ValueError("must give the lower bound first")
        return self


class Stage(Strict):
    rate_rps: Positive
    duration_s: Positive


class Prompts(Strict):
    """`distinct` prompts in `groups` that share their first `shared_tokens`, asked round robin; null where unknown."""

    distinct: Count | None
    groups: Count | None
    shared_tokens: Annotated[int, Field(ge=0)]
    unique_tokens: Count
    order: Literal["round_robin"]

    @property
    def num_distinct(self) -> int:
        """How many there are, or are taken to be."""
        return self.distinct or UNKNOWN_DISTINCT_PROMPTS

    @property
    def num_groups(self) -> int:
        """How many groups; where that is unknown, each is one by itself."""
        return self.groups or self.num_distinct


class OpenLoop(Strict):
    """Poisson arrivals at a rate for each stage."""

    kind: Literal["open_loop"]
    arrivals: Literal["poisson"]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    prompts: Prompts
    output_tokens: Count


class ClosedLoop(Strict):
    """A new request starts when one ends; the first `concurrency` start together; no prompt shares anything."""

    kind: Literal["closed_loop"]
    concurrency: Count
    num_requests: Count
    prompt_tokens: Uniform
    output_tokens: Uniform


class TraceFile(Strict):
    """Requests of a trace, `file` beside the runs; `hash_ids` stand for blocks of `hash_block_size` tokens."""

    kind: Literal["trace"]
    file: str
    hash_block_size: Count


class Requests(Strict):
    """Each request by itself, as `vllm bench serve --save-detailed` records them; with a concurrency, starts are ignored."""

    kind: Literal["requests"]
    start_s: tuple[float, ...]
    prompt_tokens: tuple[Count, ...]
    output_tokens: tuple[Count, ...]
    concurrency: Count | None = None


Workload = Annotated[OpenLoop | ClosedLoop | TraceFile | Requests, Field(discriminator="kind")]


class Measured(Strict):
    """Figures of the whole run (`stage` null) or of one stage; latencies in ms by statistic."""

    stage: Annotated[int, Field(ge=0)] | None
    ttft_ms: Mapping[str, float | None] = Field(default_factory=dict)
    tpot_ms: Mapping[str, float | None] = Field(default_factory=dict)
    itl_ms: Mapping[str, float | None] = Field(default_factory=dict)
    e2el_ms: Mapping[str, float | None] = Field(default_factory=dict)
    output_throughput: Positive | None = None
    makespan_s: Positive | None = None

    @property
    def figures(self) -> dict[str, float]:
        """All of them by name: `ttft_mean`, `e2el_p99`, ..., `output_throughput`, `makespan_s`."""
        latencies = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "itl": self.itl_ms, "e2el": self.e2el_ms}
        found = {f"{name}_{what}": value for name, by in latencies.items() for what, value in by.items()}
        found |= {"output_throughput": self.output_throughput, "makespan_s": self.makespan_s}
        return {name: value for name, value in found.items() if value is not None}


class Run(Strict):
    """One measured run. `sampling` absent means the server's default in an open loop, and greedy elsewhere."""

    id: Annotated[str, Field(min_length=1)]
    source: str = ""
    engine_version: str
    model: str
    weights_precision: str | None = None
    gpu: str
    engine: Mapping[str, Any]
    engine_args_known: bool = True
    workload: Workload
    sampling: Sampling | None = None
    clock: Clock
    measured: Annotated[tuple[Measured, ...], Field(min_length=1)]
    logged: Mapping[str, float] = Field(default_factory=dict)
    quality: Literal["A", "B"] = "A"
    note: str = ""

    @model_validator(mode="after")
    def _stages_are_those_of_the_workload(self) -> "Run":
        num_stages = len(self.workload.stages) if isinstance(self.workload, OpenLoop) else 0
        if any(figures.stage is not None and figures.stage >= num_stages for figures in self.measured):
            raise ValueError(f"must measure stages below {num_stages} or null for the whole run")
        return self

    @property
    def asks_for(self) -> Sampling:
        return self.sampling or ("default" if self.workload.kind == "open_loop" else "greedy")

    @property
    def spreads(self) -> ExpertRouting:
        """Random tokens, as closed loops send, spread more evenly over experts than a few prompts of text again and again."""
        return "mild" if self.workload.kind == "closed_loop" else "skewed"

    @property
    def vllm_version(self) -> str | None:
        """None if the file does not say."""
        version = self.engine_version.removeprefix("vllm ").split(" ")[0]
        return version if version[:1].isdigit() else None


class RunsFile(Strict):
    format: Literal[1]
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "RunsFile":
        ids = [run.id for run in self.runs]
        if repeated := {run_id for run_id in ids if ids.count(run_id) > 1}:
            raise ValueError(f"must give each run an `id` of its own, {min(repeated)} is repeated")
        return self


def read_runs(path: Path) -> tuple[Run, ...]:
    """All runs of a file in format 1; trace files are looked for beside it. Raises RunsError with file, field and rule."""
    runs = read_json(path, RunsFile).runs
    return tuple(_beside(run, path.parent) for run in runs)


def select(runs: Iterable[Run], *, only_known_args: bool) -> tuple[Run, ...]:
    """All, or those whose engine arguments are known. Raises RunsError if none is left."""
    kept = tuple(run for run in runs if run.engine_args_known or not only_known_args)
    if not kept:
        raise RunsError("no run is left with its engine arguments known; leave out --only-known-args.")
    return kept


def _beside(run: Run, folder: Path) -> Run:
    if not isinstance(run.workload, TraceFile):
        return run
    workload = run.workload.model_copy(update={"file": str(folder / run.workload.file)})
    return run.model_copy(update={"workload": workload})
