"""A run in a paragraph: what limited it, how often, and when."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sim.api import Result
from sim.errors import listed
from sim.explanation.parts import PARTS
from sim.explanation.replica_time import ReplicaTime
from sim.explanation.tail import Slowest
from sim.metrics.bottlenecks import QUEUES, WORTH_SAYING

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
ENDS = (0.05, 0.95)  # of the time that passed waiting: what lies between is nearly all of it
MET = {
    "token_budget": "filled the token budget",
    "max_num_seqs": "ran as many requests as may run",
    "kv_space": "lacked KV blocks",
}
INSTANTS = 1000


def paragraph(result: Result, replicas: Sequence[ReplicaTime], slowest: Mapping[str, Slowest]) -> str:
    """Sentences, most general first."""
    return " ".join(_sentences(result, replicas, slowest))


def _sentences(result: Result, replicas: Sequence[ReplicaTime], slowest: Mapping[str, Slowest]) -> Iterator[str]:
    summary = result.summary
    limits: Mapping[str, Any] = summary["limits"]
    if summary["duration"] is None:
        yield f"None of {summary['arrived']:,} requests was completed."
    else:
        yield f"{summary['completed']:,} requests were served in {summary['duration']:,.1f} s, {summary['request_throughput']:,.3g} a second and {summary['output_throughput']:,.0f} tokens/s."
    yield f"What limits it: {limits['text']}."
    for cause, share in sorted(limits["queued"].items(), key=lambda item: -item[1]):
        if share >= WORTH_SAYING:
            met = f"; {limits['steps'][cause]:.0%} of the steps {MET[cause]}" if cause in limits["steps"] else ""
            yield f"Requests waited for {QUEUES[cause]} in {share:.0%} of the time, {_when(result, replicas, cause)}{met}."
    if all(share < WORTH_SAYING for share in limits["queued"].values()):
        yield "Hardly any request waited."
    if summary["num_preemptions"]:
        yield f"{summary['num_preemptions']:,} preemptions took KV from requests that ran."
    yield from limits["warnings"]
    said = [
        f"{NAMES[name]} of {one.p99_ms:,.0f} ms and more, {_most(one)}" for name, one in slowest.items() if one.largest
    ]
    if said:
        yield f"The slowest 1 %: {'; '.join(said)}."


def _most(found: Slowest) -> str:
    """Its largest parts, until more than half is told."""
    told, names = 0.0, []
    for name, value in sorted(found.parts_ms.items(), key=lambda item: -item[1]):
        names.append(f"{PARTS[name]} {value / found.mean_ms:.0%}")
        told += value
        if told > found.mean_ms / 2:
            break
    return listed(names)


def _when(result: Result, replicas: Sequence[ReplicaTime], cause: str) -> str:
    """Between which times of the run nearly all of that waiting was, over all replicas."""
    first_s = float(result.records.requests.arrival_s[0])
    instants_s = first_s + np.linspace(0.0, result.run.span_s, INSTANTS)
    so_far = np.array(
        [sum(replica.waited_s(first_s, at_s).get(cause, 0.0) for replica in replicas) for at_s in instants_s.tolist()]
    )
    begin, end = np.searchsorted(so_far, [share * so_far[-1] for share in ENDS])
    begin_s, end_s = instants_s[begin] - first_s, instants_s[min(end, INSTANTS - 1)] - first_s
    return f"nearly all of it from {begin_s:,.1f} s to {end_s:,.1f} s of {result.run.span_s:,.1f} s"
