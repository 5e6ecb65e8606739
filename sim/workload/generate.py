"""Synthetic traces from a seed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count

import numpy as np

from sim.errors import ConfigError
from sim.specs.slo import SloClass, parse_slos
from sim.workload.arrivals import arrival_times
from sim.workload.columns import MAX_SECONDS, MAX_TOKENS, Floats, Ints
from sim.workload.lengths import Lengths
from sim.workload.mix import merged
from sim.workload.names import Names, PackedNames, RowNames
from sim.workload.parallel_sampling import MOST_ANSWERS
from sim.workload.prefixes import blocks
from sim.workload.rate_curve import ByRequest, RampUp, Stages, due_by_piece, times_due
from sim.workload.sessions import Flags, Prompts, Turns, conversation_prompts, draw_turns, prompts_in_window
from sim.workload.spec import ONCE, Workload, WorkloadMix, WorkloadSpec
from sim.workload.trace import Segment, Trace

MAX_BLOCKS = 20_000_000  # of all prompts together
MOST_IN_MEMORY = 10_000_000  # requests, which take some GB
SOURCE = "generated"


@dataclass(frozen=True, slots=True)
class _Streams:
    """A random stream for each quantity, so that none of them changes another."""

    arriving: np.random.Generator
    prompts: np.random.Generator
    outputs: np.random.Generator
    turning: np.random.Generator
    prefixes: np.random.Generator
    adapting: np.random.Generator
    calling: np.random.Generator
    tools: np.random.Generator
    pairing: np.random.Generator
    opening: np.random.Generator
    sampling: np.random.Generator


NUM_STREAMS = len(fields(_Streams))


def generate(workload: Workload, seed: int = 0) -> Trace:
    """The trace of `workload`; the same seed gives the same trace, and a class of clients the same whatever follows it."""
    clients = workload.clients if isinstance(workload, WorkloadMix) else (workload,)
    if sum(client.count for client in clients) > MOST_IN_MEMORY:
        raise ConfigError(
            f"the workload has {sum(client.count for client in clients):,} requests, and {MOST_IN_MEMORY:,} are drawn at most where all are kept;"
            " replay it with `stream`, or draw fewer."
        )
    children = np.random.SeedSequence(seed).spawn(NUM_STREAMS * len(clients))
    parts = []
    for number, client in enumerate(clients):
        own = children[number * NUM_STREAMS : (number + 1) * NUM_STREAMS]
        parts.append(_drawn(client, _Streams(*map(np.random.default_rng, own))))
    if any(client.slo for client in clients):
        classes = tuple(map(_limits, clients))
        parts = [
            replace(part, slo_class=np.full(len(part), number, dtype=np.int64), slo_classes=classes)
            for number, part in enumerate(parts)
        ]
    return merged(parts) if len(parts) > 1 else parts[0]


def _limits(client: WorkloadSpec) -> SloClass:
    return SloClass(client.name or "all", parse_slos(client.slo))


def drawn_parts(spec: WorkloadSpec, seed: int, at_once: int) -> Iterator[Trace]:
    """The requests of one class of clients, so many at once. They are those of `generate`, to the bit, where lengths take one draw each.

    Raises ConfigError for what is known only when all are drawn.
    """
    _check_in_parts(spec)
    streams = _Streams(*map(np.random.default_rng, np.random.SeedSequence(seed).spawn(NUM_STREAMS)))
    fresh, first_row = _fresh(spec), 0
    for starts in _starts_in_parts(spec, streams.arriving, at_once):
        part = replace(spec, num_requests=len(starts), duration_s=None, request_rate=1.0, spikes=())
        yield _drawn(part, streams, starts, fresh, first_row)
        first_row += len(starts)


def _check_in_parts(spec: WorkloadSpec) -> None:
    refused = {
        "turns` and `calls": spec.has_sessions,
        "stages": isinstance(spec.request_rate, Stages),
        "ramp_up_strategy": isinstance(spec.request_rate, RampUp),
        "length_correlation": spec.length_correlation,
        "exact": spec.exact,
        "lora_modules": spec.lora_modules,
        "slo": spec.slo,
    }
    what = next((name for name, is_there in refused.items() if is_there), None)
    if what:
        raise ConfigError(f"a workload with `{what}` cannot be streamed; leave that out, or leave `stream` out.")


def _starts_in_parts(spec: WorkloadSpec, rng: np.random.Generator, at_once: int) -> Iterator[Floats]:
    rate, number = spec.request_rate, spec.count
    assert not isinstance(rate, ByRequest), "these are refused"
    if isinstance(rate, float | int) and math.isinf(rate):
        yield from (np.zeros(min(at_once, number - first)) for first in range(0, number, at_once))
    elif isinstance(rate, float | int) and not spec.spikes:
        yield from spec.arrivals.parts(number, rate, rng, at_once)
    else:
        yield from (times_due(rate, spec.spikes, due) for due in spec.arrivals.parts(number, 1.0, rng, at_once))


def _fresh(spec: WorkloadSpec) -> Iterator[int]:
    """Contents of blocks behind those of all shared prefixes."""
    return count(spec.prefix_tokens // spec.hash_block_size * spec.num_prefixes)


def _drawn(
    spec: WorkloadSpec,
    streams: _Streams,
    starts: Floats | None = None,
    fresh: Iterator[int] | None = None,
    first_row: int = 0,
) -> Trace:
    """The requests of one class of clients, or some of them, from `first_row` on, whose sessions start then."""
    number = spec.count
    gaps = (spec.turn_gap_of_rest or spec.think_time_s or spec.turn_gap_s, spec.tool_wait_s)
    turns = draw_turns(number, spec.turns, spec.calls, gaps, (streams.turning, streams.calling))
    num_sessions = int(turns.session[-1]) + 1
    starts = _starts(spec, num_sessions, streams.arriving) if starts is None else starts
    output_tokens = _lengths(spec, spec.output_tokens, np.ones(number, dtype=np.bool_), streams.outputs)
    new_tokens = _new_tokens(spec, turns, streams)
    if spec.length_correlation and spec.has_sessions:
        output_tokens = _as_opened(spec, turns, new_tokens, output_tokens, streams.pairing)
    elif spec.length_correlation:
        new_tokens, output_tokens = _paired(new_tokens, output_tokens, spec.length_correlation, streams.pairing)
    prompts = _prompts(spec, turns, new_tokens, output_tokens)
    prefix = _prefix_numbers(spec, num_sessions, streams.prefixes)
    adapter = streams.adapting.integers(max(1, len(spec.lora_modules)), size=num_sessions)
    arrival_s = starts[turns.session] + _since_start(spec, turns, starts)
    if spec.tick_s is not None:
        arrival_s = np.floor(arrival_s / spec.tick_s) * spec.tick_s
    segments = _segments(spec, prompts, turns, prefix, fresh or _fresh(spec)) if spec.shares_prompts else None
    drawn = _in_order(spec, arrival_s, prompts, output_tokens, turns, segments, adapter, first_row)
    if spec.n != ONCE:
        drawn = replace(drawn, n=_answers(spec, streams.sampling))
    return _until(drawn, spec.duration_s) if spec.has_sessions and spec.duration_s is not None else drawn


def _answers(spec: WorkloadSpec, rng: np.random.Generator) -> Ints:
    """How many each prompt gets."""
    answers = spec.n.draw(spec.count, rng)
    if answers.max() > MOST_ANSWERS:
        raise ConfigError(f"`n` must be at most {MOST_ANSWERS:,} answers to a prompt, got {answers.max():,}.")
    return answers


def _since_start(spec: WorkloadSpec, turns: Turns, starts: Floats) -> Floats:
    """Seconds since its session began, for each request."""
    if spec.turn_gap_of_rest is None:
        return turns.since_start_s
    assert spec.duration_s is not None, "checked by the spec"
    rest_s = np.maximum(0.0, spec.duration_s - starts[turns.session])
    return np.asarray(rest_s * -np.expm1(-turns.since_start_s))


def _until(trace: Trace, end_s: float) -> Trace:
    """Without what sessions have still to say at the end; one request is left whatever happens."""
    return trace.rows(np.arange(max(1, int(np.searchsorted(trace.arrival_s, end_s, side="right")))))


def _starts(spec: WorkloadSpec, num_sessions: int, rng: np.random.Generator) -> Floats:
    """When sessions begin."""
    rate = spec.request_rate
    if isinstance(rate, Stages):
        steps = zip(rate.begins_s, rate.stages, rate.counts, strict=True)
        return np.concatenate([begin + spec.arrivals.times(due, step.rate, rng) for begin, step, due in steps])
    if isinstance(rate, RampUp):
        return np.cumsum(spec.arrivals.gaps(num_sessions, rng) / rate.rates(num_sessions))
    if isinstance(rate, float | int) and not spec.spikes:
        return arrival_times(spec.arrivals, num_sessions, rate / spec.calls_per_session, rng)
    draw = _due_by_piece if spec.exact else _due
    return times_due(rate, spec.spikes, draw(spec, num_sessions, rng) * (spec.count / num_sessions))


def _due(spec: WorkloadSpec, num_sessions: int, rng: np.random.Generator) -> Floats:
    """When sessions begin, in sessions that are due."""
    return spec.arrivals.times(num_sessions, 1.0, rng)


def _due_by_piece(spec: WorkloadSpec, num_sessions: int, rng: np.random.Generator) -> Floats:
    """The same, with as many in each piece of the rate as are due in it, to the nearest."""
    assert not isinstance(spec.request_rate, ByRequest), "these are begun one by one"
    ends = due_by_piece(spec.request_rate, spec.spikes, spec.count) * (num_sessions / spec.count)
    begins, numbers = np.append(0.0, ends[:-1]), np.diff(np.rint(ends).astype(np.int64), prepend=0)
    own = [spec.arrivals.times(number + 1, number + 1, rng)[:-1] for number in numbers.tolist()]
    return np.concatenate([begin + (end - begin) * due for begin, end, due in zip(begins, ends, own, strict=True)])


def _new_tokens(spec: WorkloadSpec, turns: Turns, streams: _Streams) -> Ints:
    """What each call says that was not said before: a message, or what a tool has answered."""
    opens = turns.call == 0 if spec.opening_tokens else np.zeros(spec.count, dtype=np.bool_)
    new_tokens = _lengths(spec, spec.prompt_tokens, turns.begins_turn & ~opens, streams.prompts)
    if not turns.begins_turn.all():
        new_tokens += _lengths(spec, spec.tool_tokens, ~turns.begins_turn & ~opens, streams.tools)
    if spec.opening_tokens:
        new_tokens += _lengths(spec, spec.opening_tokens, opens, streams.opening)
    return new_tokens


def _lengths(spec: WorkloadSpec, lengths: Lengths, wanted: Flags, rng: np.random.Generator) -> Ints:
    """Of the requests that are wanted; 0 of all others."""
    drawn = np.zeros(spec.count, dtype=np.int64)
    if spec.exact:
        drawn[wanted] = lengths.draw_evenly(int(wanted.sum()), rng)
    else:
        drawn[wanted] = lengths.draw(spec.count, rng)[wanted]
    return drawn


def _paired(prompts: Ints, outputs: Ints, correlation: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The same lengths in an order in which their ranks correlate (Iman and Conover, 1982)."""
    linear = _of_normals(correlation)
    first, other = rng.standard_normal((2, len(prompts)))
    second = linear * first + np.sqrt(1 - linear**2) * other
    return _ranked_as(prompts, first), _ranked_as(outputs, second)


def _as_opened(
    spec: WorkloadSpec, turns: Turns, new_tokens: Ints, output_tokens: Ints, rng: np.random.Generator
) -> Ints:
    """The same answers in an order in which their ranks correlate with those of what their sessions open with."""
    linear = _of_normals(spec.length_correlation)
    opening, (by_session, own) = new_tokens[turns.call == 0], rng.standard_normal((2, len(new_tokens)))
    first = np.empty(len(opening))
    first[np.argsort(opening, kind="stable")] = np.sort(by_session[: len(opening)])
    return _ranked_as(output_tokens, linear * first[turns.session] + np.sqrt(1 - linear**2) * own)


def _of_normals(correlation: float) -> float:
    """The linear correlation of normal variables whose ranks correlate so."""
    return float(2 * np.sin(np.pi / 6 * correlation))


def _ranked_as(values: Ints, pattern: Floats) -> Ints:
    ranked = np.empty_like(values)
    ranked[np.argsort(pattern, kind="stable")] = np.sort(values)
    return ranked


def _prompts(spec: WorkloadSpec, turns: Turns, new_tokens: Ints, output_tokens: Ints) -> Prompts:
    if spec.max_context_tokens is None:
        return conversation_prompts(turns, new_tokens, output_tokens, spec.prefix_tokens)
    window = (spec.max_context_tokens, spec.summary_tokens)
    return prompts_in_window(turns, new_tokens, output_tokens, spec.prefix_tokens, *window)


def _prefix_numbers(spec: WorkloadSpec, num_sessions: int, rng: np.random.Generator) -> Ints:
    """The shared prefix of each session."""
    if not spec.prefix_zipf:
        return rng.integers(spec.num_prefixes, size=num_sessions)
    weights = np.arange(1, spec.num_prefixes + 1, dtype=np.float64) ** -spec.prefix_zipf
    return rng.choice(spec.num_prefixes, size=num_sessions, p=weights / weights.sum())


def _in_order(
    spec: WorkloadSpec,
    arrival_s: Floats,
    prompts: Prompts,
    output_tokens: Ints,
    turns: Turns,
    segments: Iterator[tuple[Segment, ...]] | None,
    adapter: Ints,
    first_row: int,
) -> Trace:
    prompt_tokens = prompts.tokens
    if arrival_s.max() > MAX_SECONDS or prompt_tokens.max() > MAX_TOKENS:
        raise ConfigError(
            f"the workload grows to {arrival_s.max():.3g} s and prompts of {prompt_tokens.max():,} tokens, more than a trace "
            "holds; use a higher rate, shorter lengths or fewer turns."
        )
    num_blocks = int((prompt_tokens // spec.hash_block_size).sum())
    if spec.shares_prompts and num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"the prompts have {num_blocks:,} blocks of `hash_block_size` {spec.hash_block_size}, more than {MAX_BLOCKS:,}; use "
            "larger blocks, shorter prompts or fewer requests."
        )
    order = np.argsort(arrival_s, kind="stable")
    sessions = turns.session[order]
    paths = None if segments is None else list(segments)
    return Trace(
        request_id=_request_ids(spec, first_row),
        arrival_s=arrival_s[order],
        prompt_tokens=prompt_tokens[order],
        output_tokens=output_tokens[order],
        priority=None if spec.priority is None else np.full(spec.count, spec.priority, dtype=np.int64),
        lora_name=_lora_names(spec, adapter[sessions]),
        session_id=_session_ids(spec, sessions) if spec.has_sessions else None,
        think_time_s=turns.wait_s[order] if spec.waits_for_answers else None,
        stage=_stages(spec),
        segments=None if paths is None else [paths[row] for row in order],
        source=SOURCE,
    )


def _request_ids(spec: WorkloadSpec, first_row: int) -> Names:
    rows = RowNames(range(first_row, first_row + spec.count))
    return PackedNames.of(f"{spec.name}-{row}" for row in rows) if spec.name else rows


def _session_ids(spec: WorkloadSpec, sessions: Ints) -> tuple[str, ...]:
    begin = f"{spec.name}-s" if spec.name else "s"
    return tuple(f"{begin}{session}" for session in sessions.tolist())


def _stages(spec: WorkloadSpec) -> Ints | None:
    rate = spec.request_rate
    return np.repeat(np.arange(len(rate.counts)), rate.counts) if isinstance(rate, Stages) else None


def _lora_names(spec: WorkloadSpec, adapters: Ints) -> PackedNames | None:
    return PackedNames.of(spec.lora_modules[number] for number in adapters.tolist()) if spec.lora_modules else None


def _segments(
    spec: WorkloadSpec, prompts: Prompts, turns: Turns, prefix: Ints, fresh: Iterator[int]
) -> Iterator[tuple[Segment, ...]]:
    """Each prompt in blocks: those wholly in the shared prefix are its own for all sessions, the others the session's."""
    size = spec.hash_block_size
    shared = spec.prefix_tokens // size
    said: list[int] = []
    rows = zip(turns.session.tolist(), prompts.begins_anew.tolist(), prompts.tokens.tolist(), strict=True)
    for session, begins_anew, tokens in rows:
        if begins_anew:
            first = int(prefix[session]) * shared
            said = list(range(first, first + shared))
        num_blocks = -(-tokens // size)
        said.extend(next(fresh) for _ in range(num_blocks - len(said)))
        yield blocks(said, tokens, size)
