"""What to generate: a class of clients, or several together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from sim.errors import ConfigError
from sim.specs.slo import judged_by_request, parse_slos
from sim.workload.arrivals import POISSON, Arrivals, check_rate
from sim.workload.columns import MAX_INTEGER, MAX_SECONDS, MAX_TOKENS
from sim.workload.lengths import Counts, Fixed, Lengths
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE
from sim.workload.rate_curve import RampUp, RequestRate, Spike, Stages, num_due
from sim.workload.waits import Exponential, Waits

VLLM_BENCH_PROMPT = Fixed(1024)  # defaults of `vllm bench serve --dataset-name random`
VLLM_BENCH_OUTPUT = Fixed(128)
ONCE = Fixed(1)
BETWEEN_TURNS = Exponential(30.0)
OF_TOOLS = Exponential(5.0)
NUM_REQUESTS = 1000  # of a rate without an end; that is the default of vllm bench serve too
MAX_REQUESTS = 1_000_000_000
RANGES: dict[str, tuple[float, float]] = {
    "num_requests": (1, MAX_REQUESTS),
    "duration_s": (0, MAX_SECONDS),
    "tick_s": (1e-6, MAX_SECONDS),
    "length_correlation": (-1, 1),
    "prefix_tokens": (0, MAX_TOKENS),
    "num_prefixes": (1, MAX_TOKENS),
    "prefix_zipf": (0, 10),
    "max_context_tokens": (1, MAX_TOKENS),
    "summary_tokens": (0, MAX_TOKENS),
    "hash_block_size": (1, MAX_TOKENS),
    "priority": (-MAX_INTEGER, MAX_INTEGER),
}


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A class of clients. `prompt_tokens` are new in each request; the shared prefix and, in a session, all that was said
    before come on top.

    With one call a session, `arrivals` are those of requests, by default Poisson as of `vllm bench serve`; with more, sessions
    begin that way at `request_rate` / calls of a session. A turn makes so many `calls`: the first brings `prompt_tokens`, the
    others `tool_tokens` each, after `tool_wait_s`; a session may begin with `opening_tokens` instead. Turns come `turn_gap_s` apart, or `think_time_s` after the answer, as
    calls always do. A prompt that would be longer than `max_context_tokens` begins anew: shared prefix, a summary, what is new.
    Of `lora_modules` each session asks for one, drawn as `vllm bench serve` draws that of a request; of prefixes likewise,
    the k-th k^`prefix_zipf` times as seldom as the first. Times are as a clock that ticks every `tick_s` would have them. After `duration_s` nothing comes,
    whatever sessions had still to say; with `turn_gap_of_rest` a session says it all before, for its gaps are what is left of that time x (1 - exp(-wait)).
    `exact`: chance is in the order alone, and in bursts within pieces of a rate: each piece has as many sessions, and each length comes as often, as is due. `length_correlation` is Spearman's, of prompts and outputs, in sessions of what these open with and their answers; each prompt is answered `n` times.
    `slo` are limits as `--slo` has them, to which these requests are held instead of the run's.
    """

    num_requests: int | None = None
    request_rate: RequestRate = 10.0
    duration_s: float | None = None
    arrivals: Arrivals = POISSON
    spikes: tuple[Spike, ...] = ()
    exact: bool = False
    tick_s: float | None = None
    prompt_tokens: Lengths = VLLM_BENCH_PROMPT
    output_tokens: Lengths = VLLM_BENCH_OUTPUT
    length_correlation: float = 0.0
    n: Lengths = ONCE
    prefix_tokens: int = 0
    num_prefixes: int = 1
    prefix_zipf: float = 0.0
    turns: Counts = ONCE
    opening_tokens: Lengths | None = None
    turn_gap_s: Waits = BETWEEN_TURNS
    turn_gap_of_rest: Waits | None = None
    think_time_s: Waits | None = None
    calls: Counts = ONCE
    tool_tokens: Lengths = VLLM_BENCH_PROMPT
    tool_wait_s: Waits = OF_TOOLS
    max_context_tokens: int | None = None
    summary_tokens: int = 0
    hash_block_size: int = DEFAULT_HASH_BLOCK_SIZE
    lora_modules: tuple[str, ...] = ()
    priority: int | None = None
    slo: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"`{name}` must be from {least} to {most:.10g}, got {value}.")
        judged_by_request(parse_slos(self.slo))
        _check_extent(self)
        if isinstance(self.request_rate, float | int):
            check_rate(self.count, self.request_rate)

    @property
    def count(self) -> int:
        """How many requests there are: as many as are asked for, or as are due."""
        if isinstance(self.request_rate, Stages):
            return sum(self.request_rate.counts)
        if self.num_requests is not None:
            return self.num_requests
        if isinstance(self.request_rate, RampUp):
            return NUM_REQUESTS
        if self.duration_s is not None:
            span_s = self.duration_s
        elif isinstance(self.request_rate, float | int):
            return NUM_REQUESTS
        else:
            span_s = self.request_rate.period_s
        return max(1, round(num_due(self.request_rate, self.spikes, span_s)))

    @property
    def calls_per_session(self) -> float:
        return self.turns.mean * self.calls.mean

    @property
    def has_sessions(self) -> bool:
        return self.calls_per_session > 1

    @property
    def waits_for_answers(self) -> bool:
        """Whether waits begin when an answer has ended."""
        return self.has_sessions and (self.think_time_s is not None or self.calls.mean > 1)

    @property
    def shares_prompts(self) -> bool:
        return self.prefix_tokens > 0 or self.has_sessions


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """Classes of clients, each drawn by itself, whose requests come together."""

    clients: tuple[WorkloadSpec, ...]

    def __post_init__(self) -> None:
        names = [client.name for client in self.clients]
        if len(set(names)) < len(names) or not all(names):
            raise ConfigError(f"each class of clients must have a name of its own, got {', '.join(names)}.")
        if len({isinstance(client.request_rate, Stages) for client in self.clients}) > 1:
            raise ConfigError(
                "classes of clients have stages all together or none of them; write stages once, above them."
            )


Workload: TypeAlias = WorkloadSpec | WorkloadMix


def shared_out(spec: WorkloadSpec, shares: Sequence[float]) -> list[WorkloadSpec]:
    """The same for several classes of clients: its requests and its rate in these shares."""
    whole = sum(shares)
    bounds = [round(spec.count * passed / whole) for passed in accumulate(shares, initial=0.0)]
    counts = [end - begin for begin, end in pairwise(bounds)]
    scaled = (_scaled_rate(spec.request_rate, share / whole) for share in shares)
    keeps = spec.num_requests is None and (
        spec.duration_s is not None or not isinstance(spec.request_rate, float | int | RampUp)
    )
    return [
        replace(spec, request_rate=rate, num_requests=None if keeps else count)
        for rate, count in zip(scaled, counts, strict=True)
    ]


def _scaled_rate(rate: RequestRate, share: float) -> RequestRate:
    return rate * share if isinstance(rate, float | int) else rate.scaled(share)


def _check_extent(spec: WorkloadSpec) -> None:
    """Raises ConfigError for what says how long it is twice, or too long."""
    if spec.num_requests is not None and spec.duration_s is not None:
        raise ConfigError("`num_requests` and `duration_s` both say how long a workload is; leave one of them out.")
    if isinstance(spec.request_rate, Stages):
        if spec.num_requests is not None or spec.duration_s is not None or spec.spikes or spec.has_sessions:
            raise ConfigError(
                "stages say themselves how long they are, and are of requests; leave out num_requests, duration_s, spikes, turns and calls."
            )
    elif isinstance(spec.request_rate, RampUp):
        if spec.duration_s is not None or spec.spikes or spec.has_sessions:
            raise ConfigError(
                "a ramp-up is over a number of requests; leave out duration_s, spikes, turns and calls, and give num_requests."
            )
    elif spec.request_rate == float("inf") and (spec.duration_s is not None or spec.spikes):
        raise ConfigError("a rate of `inf` sends all at once; leave out duration_s and spikes, or give a rate.")
    if spec.turn_gap_of_rest is not None and (spec.duration_s is None or spec.waits_for_answers):
        raise ConfigError(
            "`turn_gap_of_rest` needs `duration_s`, and gaps between arrivals; leave out num_requests, think_time_s and calls."
        )
    window = spec.max_context_tokens
    if window is not None and spec.prefix_tokens + spec.summary_tokens >= window:
        raise ConfigError(
            f"`max_context_tokens` must be more than prefix_tokens and summary_tokens together, got {window} for "
            f"{spec.prefix_tokens} and {spec.summary_tokens}."
        )
    if not 1 <= spec.count <= MAX_REQUESTS:
        raise ConfigError(f"a workload must have from 1 to {MAX_REQUESTS:,} requests, got {spec.count:,}.")
