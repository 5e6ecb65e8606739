"""Synthetic traces from a seed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from sim.errors import ConfigError
from sim.workload.arrivals import POISSON, Arrivals, arrival_times, check_rate
from sim.workload.columns import MAX_SECONDS, MAX_TOKENS, Floats, Ints
from sim.workload.lengths import Fixed, Lengths
from sim.workload.names import PackedNames, RowNames
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE, blocks
from sim.workload.sessions import Turns, conversation_prompts, draw_turns
from sim.workload.trace import Segment, Trace

VLLM_BENCH_PROMPT = Fixed(1024)  # defaults of `vllm bench serve --dataset-name random`
VLLM_BENCH_OUTPUT = Fixed(128)
MAX_REQUESTS = 10_000_000  # which take some GB
MAX_BLOCKS = 20_000_000  # of all prompts together


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to generate. `prompt_tokens` are new in each request; the shared prefix and, in a session of several turns,
    all that was said before come on top. With one turn a session, `arrivals` are those of requests, by default Poisson as
    of `vllm bench serve`; with more, sessions begin that way at `rate_rps` / `mean_turns` and turns follow `turn_gap_s`
    apart on average. Of `lora_modules` each session asks for one, drawn as `vllm bench serve` draws that of a request.
    """

    num_requests: int = 1000
    rate_rps: float = 10.0
    arrivals: Arrivals = POISSON
    prompt_tokens: Lengths = VLLM_BENCH_PROMPT
    output_tokens: Lengths = VLLM_BENCH_OUTPUT
    prefix_tokens: int = 0
    num_prefixes: int = 1
    mean_turns: float = 1.0
    turn_gap_s: float = 30.0
    hash_block_size: int = DEFAULT_HASH_BLOCK_SIZE
    lora_modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self)
        check_rate(self.num_requests, self.rate_rps)

    @property
    def shares_prompts(self) -> bool:
        return self.prefix_tokens > 0 or self.mean_turns > 1


def _check_ranges(spec: WorkloadSpec) -> None:
    ranges = {
        "num_requests": (1, MAX_REQUESTS),
        "prefix_tokens": (0, MAX_TOKENS),
        "num_prefixes": (1, MAX_TOKENS),
        "hash_block_size": (1, MAX_TOKENS),
        "mean_turns": (1, MAX_TOKENS),
        "turn_gap_s": (0, MAX_SECONDS),
    }
    for name, (least, most) in ranges.items():
        value = getattr(spec, name)
        if not least <= value <= most:
            raise ConfigError(f"`{name}` must be from {least} to {most:.10g}, got {value}.")


def generate(spec: WorkloadSpec, seed: int = 0) -> Trace:
    """The trace of `spec`; the same seed gives the same trace. Each quantity has a random stream of its own."""
    streams = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(6))
    arriving, prompts, outputs, turning, prefixes, adapting = streams
    turns = draw_turns(spec.num_requests, spec.mean_turns, spec.turn_gap_s, turning)
    num_sessions = int(turns.session[-1]) + 1
    starts = arrival_times(spec.arrivals, num_sessions, spec.rate_rps / spec.mean_turns, arriving)
    output_tokens = spec.output_tokens.draw(spec.num_requests, outputs)
    new_tokens = spec.prompt_tokens.draw(spec.num_requests, prompts)
    prompt_tokens = conversation_prompts(turns, new_tokens, output_tokens, spec.prefix_tokens)
    prefix = prefixes.integers(spec.num_prefixes, size=num_sessions)
    adapter = adapting.integers(max(1, len(spec.lora_modules)), size=num_sessions)
    arrival_s = starts[turns.session] + turns.since_start_s
    return _in_order(spec, arrival_s, prompt_tokens, output_tokens, turns, prefix, adapter)


def _in_order(
    spec: WorkloadSpec,
    arrival_s: Floats,
    prompt_tokens: Ints,
    output_tokens: Ints,
    turns: Turns,
    prefix: Ints,
    adapter: Ints,
) -> Trace:
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
    segments = list(_segments(spec, prompt_tokens, turns, prefix)) if spec.shares_prompts else None
    return Trace(
        request_id=RowNames(range(spec.num_requests)),
        arrival_s=arrival_s[order],
        prompt_tokens=prompt_tokens[order],
        output_tokens=output_tokens[order],
        lora_name=_lora_names(spec, adapter[turns.session[order]]),
        session_id=tuple(f"s{session}" for session in turns.session[order].tolist()) if spec.mean_turns > 1 else None,
        segments=None if segments is None else [segments[row] for row in order],
        source="generated",
    )


def _lora_names(spec: WorkloadSpec, adapters: Ints) -> PackedNames | None:
    return PackedNames.of(spec.lora_modules[number] for number in adapters.tolist()) if spec.lora_modules else None


def _segments(spec: WorkloadSpec, prompt_tokens: Ints, turns: Turns, prefix: Ints) -> Iterator[tuple[Segment, ...]]:
    """Each prompt in blocks: those wholly in the shared prefix are its own for all sessions, the others the session's."""
    size = spec.hash_block_size
    shared = spec.prefix_tokens // size
    fresh = count(shared * spec.num_prefixes)
    said: list[int] = []
    rows = zip(turns.session.tolist(), turns.turn.tolist(), prompt_tokens.tolist(), strict=True)
    for session, turn, tokens in rows:
        if turn == 0:
            first = int(prefix[session]) * shared
            said = list(range(first, first + shared))
        num_blocks = -(-tokens // size)
        said.extend(next(fresh) for _ in range(num_blocks - len(said)))
        yield blocks(said, tokens, size)
