"""Where the time of a request goes, part by part; the parts of any stretch between its steps add up to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sim.explanation.passes import Pass, Watched
from sim.explanation.replica_time import SLACK_S, ReplicaTime

FRONT_END = "front_end"
PARTS = {
    "queue_token_budget": "queueing for token budget",
    "queue_max_num_seqs": "queueing for max_num_seqs",
    "queue_kv_space": "queueing for KV space",
    "queue_static_batch": "queueing for the end of a batch",
    "queue_other": "until the next pass takes it",
    "elsewhere": "KV on its way, or moved",
    "own_prefill": "its own prompt",
    "others_prefill": "prompts of others before and beside it",
    "beside_decodes": "decodes in its prompt's steps",
    "lost": "lost with its replica, until it began again",
    "preempted": "preempted",
    "recomputed": "computing again what was lost",
    "decode": "its decodes",
    "slow_steps": "prompts of others in its decodes' steps",
    "between": "between its steps",
    "host": "host work and launches",
    FRONT_END: "the front end: HTTP, tokenizer, streaming",
}
"""What each part is called. Queueing counts until the step begins; KV that is loaded from a store waits for space."""


class Span(NamedTuple):
    """A stretch of a request's time, and its seconds by part."""

    start_s: float
    end_s: float
    seconds: Mapping[str, float]


def spans(
    life: Watched,
    arrival_s: float,
    first_s: float,
    finish_s: float,
    prompt_tokens: int,
    replicas: Sequence[ReplicaTime],
) -> Iterator[Span]:
    """One after the other, from arrival to finish: what lies before each step of the request, and the step. A request that
    decodes before its first token has been lost since, and began again.
    """
    at_s, before = arrival_s, None
    for one, was_preempted, is_again in life.told():
        in_vain = one.end_s < first_s - SLACK_S and one.num_computed >= prompt_tokens
        if one.start_s > at_s:
            began_again = before is not None and before.num_computed >= prompt_tokens and one.end_s <= first_s + SLACK_S
            gap = _gap(at_s, one, before, prompt_tokens, replicas, was_preempted=was_preempted)
            yield Span(at_s, one.start_s, {"lost": one.start_s - at_s} if began_again else gap)
        if one.end_s > (start_s := max(at_s, one.start_s)):
            parts = {"lost": 1.0} if in_vain else _step(one, replicas[one.replica], prompt_tokens, is_again=is_again)
            yield Span(start_s, one.end_s, _scaled(parts, one.end_s - start_s))
        at_s, before = max(at_s, one.end_s), one
    if finish_s > at_s:
        yield Span(at_s, finish_s, {"between": finish_s - at_s})


def _gap(
    since_s: float,
    until: Pass,
    before: Pass | None,
    prompt_tokens: int,
    replicas: Sequence[ReplicaTime],
    *,
    was_preempted: bool,
) -> dict[str, float]:
    """What a request waits for before a step."""
    length_s = until.start_s - since_s
    if before is None:
        waited_s = replicas[until.replica].waited_s(since_s, min(until.scheduled_s, until.start_s))
        known_s = sum(waited_s.values())
        named = {f"queue_{cause}": seconds for cause, seconds in waited_s.items() if seconds}
        return _scaled(named, min(known_s, length_s)) | {"queue_other": max(0.0, length_s - known_s)}
    if until.replica != before.replica:
        return {"elsewhere": length_s}
    if was_preempted:
        return {"preempted": length_s}
    return {"others_prefill" if until.num_computed < prompt_tokens else "between": length_s}


def _step(one: Pass, replica: ReplicaTime, prompt_tokens: int, *, is_again: bool) -> dict[str, float]:
    """A step by whose tokens took it."""
    step = replica.step(one.start_s)
    if one.num_computed >= prompt_tokens and not is_again:
        return {"decode": step.decode_s, "slow_steps": step.prefill_s, "host": step.host_s}
    own = "recomputed" if is_again else "own_prefill"
    if one.num_tokens == 1 or not step.num_chunk_tokens:  # a single token runs with the decodes
        return {own: step.decode_s, "others_prefill": step.prefill_s, "host": step.host_s}
    share = min(1.0, one.num_tokens / step.num_chunk_tokens)
    return {
        own: step.prefill_s * share,
        "others_prefill": step.prefill_s * (1 - share),
        "beside_decodes": step.decode_s,
        "host": step.host_s,
    }


def _scaled(parts: Mapping[str, float], length_s: float) -> dict[str, float]:
    """The same shares of so many seconds."""
    total_s = sum(parts.values())
    return {name: seconds * length_s / total_s for name, seconds in parts.items()} if total_s else {"host": length_s}


def total(found: Sequence[Span], since_s: float, until_s: float) -> dict[str, float]:
    """Seconds by part in that time, in the order of PARTS; none that are 0."""
    inside = [(span, share) for span in found if (share := _share(span, since_s, until_s))]
    sums = {name: sum(span.seconds.get(name, 0.0) * share for span, share in inside) for name in PARTS}
    return {name: seconds for name, seconds in sums.items() if seconds > 0}


def _share(span: Span, since_s: float, until_s: float) -> float:
    """How much of a span lies in that time; answers of one request may run side by side, so that one begins in another's step."""
    if since_s <= span.start_s + SLACK_S and span.end_s <= until_s + SLACK_S:
        return 1.0
    overlap_s = min(span.end_s, until_s) - max(span.start_s, since_s)
    return overlap_s / (span.end_s - span.start_s) if overlap_s > SLACK_S else 0.0
