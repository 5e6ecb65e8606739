"""What a replica did with its time: the parts of each step, and what its waiting requests waited for."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim.api import Result
from sim.engine.records import Floats, Ints
from sim.metrics.bottlenecks import waits_by_leap
from sim.metrics.columns import Columns, deployed_step_columns
from sim.metrics.kv_on_its_way import OnItsWay, Watched

SLACK_S = 1e-9  # a step is found by its start, of which logs and records have the last bits differently


class StepParts(NamedTuple):
    """Seconds of a step by what ran, and the prompt tokens that it computed; kernels that share a step share its time."""

    prefill_s: float
    decode_s: float
    host_s: float
    num_chunk_tokens: int


class ReplicaTime:
    """The steps of one replica, in order of launch."""

    def __init__(self, columns: Columns, waits: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        self._start_s, self._end_s = (np.asarray(columns[name], dtype=np.float64) for name in ("start_s", "end_s"))
        self._num_chunk_tokens: Ints = np.asarray(columns["num_chunk_tokens"])
        self._prefill_s, self._decode_s = _kernels(columns, self._end_s - self._start_s)
        self._host_s: Floats = np.nan_to_num(np.asarray(columns["host_s"], dtype=np.float64))
        self._waits = {cause: _cumulative(stretches) for cause, stretches in waits.items()}

    def step(self, start_s: float) -> StepParts:
        """The step that began then."""
        row = int(np.searchsorted(self._start_s, start_s + SLACK_S, side="right")) - 1
        prefill_s, decode_s, host_s = (float(of[row]) for of in (self._prefill_s, self._decode_s, self._host_s))
        return StepParts(prefill_s, decode_s, host_s, int(self._num_chunk_tokens[row]))

    def waited_s(self, since_s: float, until_s: float) -> dict[str, float]:
        """By cause, how much of that time passed with requests left waiting."""
        return {
            cause: float(np.interp(until_s, *at) - np.interp(since_s, *at)) if len(at[0]) else 0.0
            for cause, at in self._waits.items()
        }


def _kernels(columns: Columns, durations_s: Floats) -> tuple[Floats, Floats]:
    """Step times that are given do not tell their parts: they are shared out by tokens."""
    prefill_s, decode_s = (np.asarray(columns[name], dtype=np.float64) for name in ("prefill_s", "decode_s"))
    tokens = np.asarray(columns["num_chunk_tokens"], dtype=np.float64)
    share = tokens / np.maximum(1.0, tokens + np.asarray(columns["num_decodes"]))
    unknown = np.isnan(prefill_s)
    return np.where(unknown, durations_s * share, prefill_s), np.where(unknown, durations_s * (1 - share), decode_s)


def _cumulative(stretches: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Times in order, and the seconds of the stretches up to each; of stages, whose steps overlap, no second counts twice."""
    edges_s: Floats = np.maximum.accumulate(np.array(stretches, dtype=np.float64).reshape(-1))
    lengths_s = np.diff(edges_s, prepend=edges_s[:1])
    lengths_s[::2] = 0.0
    return edges_s, np.cumsum(lengths_s)


def replica_times(result: Result) -> list[ReplicaTime]:
    """Of each replica, by number."""
    return [ReplicaTime(*facts) for facts in _facts(result)]


def _facts(result: Result) -> Iterator[tuple[Columns, Mapping[str, list[tuple[float, float]]]]]:
    run = result.run
    for number, (part, pool) in enumerate(zip(run.replicas, run.pool_of, strict=True)):
        deployment = result.fleet.pools[pool].deployment
        steps = Watched(part.leaps, OnItsWay.of(run.handovers, run.replica == number) if run.handovers else OnItsWay())
        waits: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for leaps, causes in waits_by_leap(run.pools[pool].requests, deployment.config, steps):
            for cause, where in causes.items():
                waits[cause] += zip(leaps.start_s[where].tolist(), leaps.end_s[where].tolist(), strict=True)
        yield deployed_step_columns(deployment, part.steps), waits
