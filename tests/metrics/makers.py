"""Records written by hand: what a run would have left."""

from typing import NamedTuple

import numpy as np

from sim.engine.leap_records import LeapRecords
from sim.engine.records import Records, RequestRecords
from sim.steptime.graphs import GraphDispatch
from sim.workload.trace import Trace
from tests.listed_gaps import ListedGaps
from tests.single_steps import single_steps

NAN = float("nan")
DISPATCH = GraphDispatch("FULL_AND_PIECEWISE", (1, 2, 4, 8), max_num_seqs=4)


class Life(NamedTuple):
    """One request's life; a completed one generates all its tokens."""

    arrival_s: float = 0.0
    first_token_s: float = NAN
    finish_s: float = NAN
    prompt_tokens: int = 10
    output_tokens: int = 1
    first_scheduled_s: float = NAN
    num_preemptions: int = 0
    rejected: str | None = None
    failed: str | None = None


class Step(NamedTuple):
    """One step; blocks and queues as they stand after it was scheduled; all decodes run, and nobody else unless said."""

    start_s: float
    end_s: float
    num_free_blocks: int = 10
    num_decodes: int = 1
    decode_context_tokens: int = 100
    num_chunk_tokens: int = 0
    num_running: int | None = None
    num_waiting: int = 0
    num_preempted: int = 0


def make_requests(*lives: Life) -> RequestRecords:
    """Records of these lives."""
    columns = {name: [getattr(life, name) for life in lives] for name in Life._fields}
    completed = np.isfinite(columns["finish_s"])
    return RequestRecords(
        arrival_s=np.asarray(columns["arrival_s"], dtype=float),
        prompt_tokens=np.asarray(columns["prompt_tokens"], dtype=np.int64),
        output_tokens=np.asarray(columns["output_tokens"], dtype=np.int64),
        generated_tokens=np.where(completed, columns["output_tokens"], 0).astype(np.int64),
        first_scheduled_s=np.asarray(columns["first_scheduled_s"], dtype=float),
        first_token_s=np.asarray(columns["first_token_s"], dtype=float),
        finish_s=np.asarray(columns["finish_s"], dtype=float),
        num_preemptions=np.asarray(columns["num_preemptions"], dtype=np.int64),
        num_cached_tokens=np.zeros(len(lives), dtype=np.int64),
        rejected={row: reason for row, reason in enumerate(columns["rejected"]) if reason},
        failed={row: reason for row, reason in enumerate(columns["failed"]) if reason},
    )


def make_leaps(*steps: Step) -> LeapRecords:
    """Records of these steps, each a leap of its own; prompts are one chunk, and each gets its first token."""
    columns = {name: [getattr(step, name) for step in steps] for name in Step._fields}
    columns["num_chunks"] = [step.num_chunk_tokens > 0 for step in steps]
    columns["num_sampled"] = [step.num_decodes + (step.num_chunk_tokens > 0) for step in steps]
    columns["num_running"] = [_running(step) for step in steps]
    chunks = [(step.num_chunk_tokens, 0) for step in steps if step.num_chunk_tokens]
    return single_steps(columns, columns.pop("end_s"), chunks)


def _running(step: Step) -> int:
    return step.num_decodes if step.num_running is None else step.num_running


def make_records(
    *lives: Life,
    steps: tuple[Step, ...] = (),
    itl_s: dict[float, int] | None = None,
    prefix_cache_queries: int = 0,
    prefix_cache_hits: int = 0,
) -> Records:
    """A whole run; `itl_s` says how often each gap occurred."""
    return Records(
        requests=make_requests(*lives),
        leaps=make_leaps(*steps),
        gaps=ListedGaps(itl_s or {}),
        prefix_cache_queries=prefix_cache_queries,
        prefix_cache_hits=prefix_cache_hits,
        num_evictions=0,
        stage_busy_s=None,
        offload=None,
        stored=None,
        lora=None,
        swaps=None,
        speculation=None,
    )


def make_trace(records: Records, *, session_id: tuple[str, ...] | None = None) -> Trace:
    """The trace that these records answer."""
    requests = records.requests
    return Trace(
        request_id=tuple(f"r{i}" for i in range(len(requests))),
        arrival_s=requests.arrival_s,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        session_id=session_id,
    )
